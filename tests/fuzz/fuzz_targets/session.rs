//! Drives a session of either role with arbitrary operations, and with frames of every role from every sender: no
//! panic, no call with two outcomes, and at the end no open call.
//!
//! The input is a list of operations, each one byte followed by its parameters.

#![no_main]

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use toolbridge::{
    Caps, CloseReason, Config, ConnectionState, Event, Progress, Role, Tool, ToolError, Value,
    frame::{Frame, Kind, Meta},
    session::{CallKey, JobKey, Output, Request, SendFailure, Session},
    transport::{Lane, Participant, Peer, TransportEvent},
};

/// Calls that may be open with one owner.
const OPEN: usize = 4;

/// Packets that one operation may cause.
const PACKETS: usize = 128;

/// The remaining input, followed by zeros.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, self.0), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[usize::from(self.next()) % from.len()].clone()
    }

    fn flag(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

/// The session, and what the checks need to know.
struct Run {
    session: Session,
    now: Instant,
    jobs: BTreeMap<JobKey, String>,
    /// The session's calls, with the number of outcomes of each.
    calls: BTreeMap<CallKey, u32>,
    detached: Vec<CallKey>,
    /// Ids and stanzas that the session has used, so that frames can refer to them.
    ids: Vec<String>,
    instances: Vec<String>,
    packets: Vec<u64>,
    closed: bool,
    /// Whether clients may stop calls.
    stops: bool,
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let mut run = Run::new(&mut bytes);
    for _ in 0..400 {
        if bytes.0.is_empty() {
            break;
        }
        run.operation(&mut bytes);
    }
    run.end();
});

/// Returns a frame in its compressed form, in one block that is stored, with this length.
fn compressed(frame: &[u8], length: usize) -> Vec<u8> {
    let stored = (frame.len() as u16).to_le_bytes();
    let other = (!(frame.len() as u16)).to_le_bytes();
    [&[0xc1], &(length as u32).to_be_bytes()[..], &[1], &stored, &other, frame].concat()
}

impl Run {
    fn new(bytes: &mut Bytes<'_>) -> Self {
        let mut caps = Caps::default();
        caps.calls.open_per_peer = OPEN;
        caps.calls.open_calls = 2 * OPEN;
        caps.requests.table_entries = 6;
        caps.requests.table_bytes = 2_000;
        caps.frames.held_frames = 6;
        caps.frames.held_bytes = 4_000;
        caps.frames.max_packet = 1_500;
        let mut config = Config::default().room("room").caps(caps).compress(true);
        let client = bytes.flag();
        if bytes.flag() {
            config = if client { config.assistant("a") } else { config.admit("c") };
        }
        let stops = !client && bytes.flag();
        let local = Participant::new("me", "PA_0");
        let now = Instant::now();
        let session = match client {
            true => Session::client(now, local.role(Role::Client), config, [7; 32]),
            false => Session::assistant(now, local.agent(true), config, [7; 32]),
        };
        let mut run = Self {
            session,
            now,
            jobs: BTreeMap::new(),
            calls: BTreeMap::new(),
            detached: Vec::new(),
            ids: vec!["guess".to_owned()],
            instances: vec!["one".to_owned(), "two".to_owned()],
            packets: Vec::new(),
            closed: false,
            stops,
        };
        let tools = ["t", "u"].map(|name| Tool::new(name.parse().unwrap(), "a tool"));
        run.session.offer(run.now, tools.to_vec()).unwrap();
        run.flush();
        run
    }

    fn operation(&mut self, bytes: &mut Bytes<'_>) {
        let now = self.now;
        match bytes.next() % 32 {
            0 => {
                self.session.handle_event(now, TransportEvent::Joined(who(bytes).allowed_to_stop(self.stops)))
            }
            1 => self.session.handle_event(now, TransportEvent::Left(peer(bytes))),
            2 => self.session.handle_event(
                now,
                TransportEvent::ConnectionState(if bytes.flag() {
                    ConnectionState::Connected
                } else {
                    ConnectionState::Reconnecting
                }),
            ),
            3 => {
                let sid = format!("PA_{}", bytes.next() % 4);
                let present = (0..bytes.next() % 4).map(|_| who(bytes).allowed_to_stop(self.stops)).collect();
                self.session.handle_rejoined(now, Participant::new("me", sid), present);
            }
            4 => {
                let why = bytes.pick(&[SendFailure::Closed, SendFailure::NotAllowed, SendFailure::QueueFull]);
                let too_large = SendFailure::TooLarge { size: 9_999, limit: 1_500 };
                let why = if bytes.flag() { why } else { too_large };
                let at = usize::from(bytes.next());
                if let Some(packet) = self.packets.iter().rev().nth(at).copied() {
                    self.session.handle_send_failed(now, packet, why);
                }
            }
            5..=7 => {
                let millis = bytes.pick(&[0, 1, 20, 100, 1_000, 2_000, 5_000, 40_000]);
                self.passes(Duration::from_millis(millis));
            }
            8..=10 => {
                let mut request = Request::new(
                    bytes.pick(&["t", "u", "bridge.echo", "bridge.x", "no such"]),
                    Value::empty(),
                );
                if bytes.flag() {
                    request = request.to(bytes.pick(&["a", "c", "x", "me"]));
                }
                let millis = bytes.pick(&[0, 1, 500, 30_000, 700_000]);
                request = request.timeout(Duration::from_millis(millis));
                if let Ok(key) = self.session.call(now, request) {
                    self.calls.insert(key, 0);
                    self.ids.extend(self.session.call_id(key).map(ToString::to_string));
                }
            }
            11 => {
                if let Some(key) = self.a_call(bytes) {
                    self.session.cancel(now, key);
                }
            }
            12 => {
                if let Some(key) = self.a_call(bytes).filter(|key| self.calls[key] == 0) {
                    self.detached.push(key);
                    self.session.detach(now, key);
                }
            }
            13 | 14 => {
                let at = usize::from(bytes.next());
                if let Some(key) = self.jobs.keys().nth(at % self.jobs.len().max(1)).copied() {
                    self.jobs.remove(&key);
                    let size = usize::from(bytes.next()) * 16;
                    let outcome = match bytes.next() % 3 {
                        0 => Err(ToolError::new(bytes.pick(&["busy", "lost", "odd"]), "no")),
                        _ => Ok(Value::encode(&json!({"pad": ".".repeat(size)})).unwrap()),
                    };
                    self.session.settle(now, key, outcome);
                }
            }
            15 => {
                if let Some(key) = self.jobs.keys().next().copied() {
                    self.session.progress(now, key, Progress::started());
                }
            }
            16 if bytes.next() == 0 => self.session.close(now),
            17 if bytes.next() == 0 => {
                self.session.handle_event(now, TransportEvent::Closed(CloseReason::DuplicateIdentity))
            }
            18 if bytes.next() == 0 => self.session.drain(now),
            19 => {
                let sender = peer(bytes);
                let length = usize::from(bytes.next()).min(bytes.0.len());
                let (payload, rest) = bytes.0.split_at(length);
                bytes.0 = rest;
                self.session.handle_event(
                    now,
                    TransportEvent::packet(sender.clone(), Lane::Reliable, payload.to_vec()),
                );
            }
            _ => {
                let sender = peer(bytes);
                let frame = self.frame(bytes);
                let payload = match bytes.next() % 8 {
                    0 => compressed(&frame, frame.len()),
                    1 => compressed(&frame, usize::from(bytes.next())),
                    2 => [&[0xc1, 0, 0, 4, bytes.next()], &frame[..]].concat(),
                    _ => frame,
                };
                self.session
                    .handle_event(now, TransportEvent::packet(sender.clone(), Lane::Reliable, payload));
            }
        }
        self.flush();
    }

    /// A frame of any type, about a call or a participant that may exist.
    fn frame(&mut self, bytes: &mut Bytes<'_>) -> Vec<u8> {
        let at = usize::from(bytes.next());
        let id = self.ids[at % self.ids.len()].clone();
        let stanza = i32::from(bytes.next()) - 128;
        let of = i32::from(bytes.next()) - 128;
        let flag = bytes.flag();
        let mut meta = Meta::new();
        let instance = self.instances[usize::from(bytes.next()) % self.instances.len()].clone();
        let (kind, body) = match bytes.next() % 15 {
            0 => (
                Kind::ERROR,
                json!({"id": "e", "conversationId": "room", "code": bytes.pick(&[101, 201, 301, 304, 403]),
                    "message": "no", "severity": 1, "recoverable": flag, "originatingId": id}),
            ),
            1..=3 => {
                let execution = bytes.pick(&["client", "server", "either", "nobody"]);
                if flag {
                    meta.set_text("bridge.to", bytes.pick(&["0123456789abcdef", ""]));
                }
                let tool = bytes.pick(&["t", "u", "none", "bridge.echo"]);
                let fresh = format!("id-{of}");
                self.ids.push(fresh.clone());
                let id = if bytes.flag() { fresh } else { id };
                (
                    Kind::TOOL_USE_REQUEST,
                    json!({"id": id, "toolName": tool, "parameters": {"n": of}, "execution": execution,
                        "timeoutMs": bytes.pick(&[0, 1, 900, 60_000, -5])}),
                )
            }
            4 | 5 => {
                let code = bytes.pick(&["busy", "timeout", "lost", "unknown_tool", "odd"]);
                (
                    Kind::TOOL_USE_RESULT,
                    json!({"id": id, "success": flag, "result": {"n": of}, "errorCode": code}),
                )
            }
            6 => {
                let notes = bytes.pick(&[None, Some("ping"), Some("pong"), Some("claim")]);
                (
                    Kind::ACKNOWLEDGEMENT,
                    json!({"acknowledgedStanzaId": of, "success": flag, "acknowledgedMessageId": id, "notes": notes}),
                )
            }
            7 => {
                meta.set_bool("bridge.bye", bytes.flag());
                let target = flag.then_some(id);
                (Kind::CONTROL_STOP, json!({"conversationId": "room", "targetId": target}))
            }
            8 | 9 => {
                if flag {
                    meta.set_text("bridge.instance", &instance);
                }
                meta.set_bool("bridge.heard", bytes.flag());
                let room = bytes.pick(&["room", "room", "room", "another"]);
                let features =
                    ["tool_use", "tool_register", "tool_progress", "tool_cancel", "tool_ack", "tool_claim", "deflate"];
                let listed = usize::from(bytes.next()) % (features.len() + 1);
                (Kind::CONFIGURATION, json!({"conversationId": room, "features": features[..listed]}))
            }
            10 => {
                let names: Vec<_> =
                    (0..bytes.next() % 4).map(|_| bytes.pick(&["t", "u", "v", "bridge.x", "a b"])).collect();
                let tools: Vec<_> =
                    names.iter().map(|name| json!({"name": name, "description": "d"})).collect();
                (Kind::TOOLS_REGISTER, json!({"tools": tools}))
            }
            11 => (Kind::TOOLS_REGISTER_ACK, json!({"success": flag, "toolCount": of})),
            12 => (Kind::HEARTBEAT, json!({})),
            13 => (Kind::VIEW_UPDATE, json!({"view": "v", "content": {"n": of}, "text": "n"})),
            _ => (Kind::TOOL_PROGRESS, json!({"id": id, "status": "in_progress", "message": "on"})),
        };
        let mut payload = Vec::new();
        let body = Value::encode(&body).unwrap();
        let _ = Frame::relay(&mut payload, stanza, "room", &meta, kind, body.as_bytes()); // most kinds refuse stanza 0
        payload
    }

    fn a_call(&self, bytes: &mut Bytes<'_>) -> Option<CallKey> {
        let at = usize::from(bytes.next());
        self.calls.keys().nth(at % self.calls.len().max(1)).copied()
    }

    /// Advances the clock from timer to timer.
    fn passes(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..10_000 {
            let Some(due) = self.session.poll_timeout().filter(|due| *due <= end) else {
                self.now = end;
                return;
            };
            self.now = due.max(self.now);
            self.session.handle_timeout(self.now);
            self.flush();
        }
        panic!("the session's timers never end");
    }

    fn flush(&mut self) {
        let mut packets = 0;
        while let Some(output) = self.session.poll_output() {
            assert!(!self.closed, "output after it has closed: {output:?}");
            match output {
                Output::Transmit(packet) => {
                    packets += 1;
                    assert!(packet.is_addressed(), "a packet without receivers: {packet:?}");
                    let frame =
                        Frame::decode(packet.payload.clone()).expect("the session's frame can be decoded");
                    self.instances.extend(frame.meta_str("bridge.instance").map(str::to_owned));
                    self.packets.push(packet.id);
                }
                Output::Execute(job) => {
                    self.ids.push(job.call.to_string());
                    assert!(
                        self.jobs.insert(job.key, job.caller.to_string()).is_none(),
                        "a job starts twice"
                    );
                    let of_caller =
                        self.jobs.values().filter(|caller| **caller == job.caller.as_str()).count();
                    assert!(
                        of_caller <= OPEN || job.caller.as_str() == "me",
                        "{of_caller} tools run for one caller"
                    );
                }
                Output::Select(selection) => panic!("a selection without a function: {selection:?}"),
                Output::Ask(question) => panic!("a question without consent support: {question:?}"),
                Output::Abort { key, .. } => {
                    assert!(self.jobs.remove(&key).is_some(), "a job is aborted that does not run")
                }
                Output::Settled { key, .. } => {
                    let outcomes = self.calls.entry(key).or_default();
                    *outcomes += 1;
                    assert!(
                        *outcomes == 1 && !self.detached.contains(&key),
                        "a call has more than one outcome"
                    );
                }
                Output::Event(Event::Closed(_)) => self.closed = true,
                Output::Event(_) => {}
            }
        }
        assert!(packets <= PACKETS, "the session sends {packets} packets after one operation");
        assert!(self.session.open_calls() <= 2 * OPEN, "{} calls are open", self.session.open_calls());
        self.ids.truncate(64);
        self.instances.truncate(16);
    }

    /// Lets every timeout pass, and checks that nothing is left open.
    fn end(mut self) {
        self.passes(Duration::from_secs(700));
        assert_eq!(
            (self.session.open_calls(), self.session.open_jobs()),
            (0, 0),
            "a call or a job is still open"
        );
        for (key, outcomes) in &self.calls {
            let wanted = u32::from(!self.detached.contains(key));
            assert_eq!(*outcomes, wanted, "{key:?}");
        }
        self.session.close(self.now);
        self.flush();
    }
}

/// A participant of any role, with or without rights.
fn who(bytes: &mut Bytes<'_>) -> Participant {
    let peer = peer(bytes);
    let who = Participant::new(peer.identity().clone(), peer.sid().clone());
    match bytes.next() % 5 {
        0 => who.agent(true),
        1 => who.role(Role::Client),
        2 => who.role(Role::Observer),
        3 => who.role(Role::Assistant),
        _ => who,
    }
}

fn peer(bytes: &mut Bytes<'_>) -> Peer {
    let identity = bytes.pick(&["a", "c", "a", "c", "x", "o", "b", "me", ""]);
    let sid = bytes.pick(&["PA_1", "PA_1", "PA_1", "PA_2", "PA_3", ""]);
    Peer::new(identity, sid)
}
