//! Requests of LiveKit's RPC at a client: who may call, what runs, and how it is answered.

use std::time::{Duration, Instant};

use bytes::Bytes;
use toolbridge::{
    Config, ConnectionState, Consent, ErrorCode, Event, Progress, Tool, ToolError, ToolOptions, Value,
    frame::{Configuration, Frame, Kind, Message, Meta, ToolUseRequest},
    session::{Counter, Job, Output, Question, SendFailure, Session},
    tools::Execution,
    transport::{
        Compression, Form, Lane, Packet, Participant, Peer, RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC,
        RpcMessage, RpcRequest, StreamHeader, StreamKind, StreamPart, StreamParts, TextStream,
        TransportEvent,
    },
};

use crate::session_world::plain;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A client that answers RPC, and what it has done.
struct Callee {
    session: Session,
    now: Instant,
    sent: Vec<Packet>,
    frames: Vec<Frame>,
    jobs: Vec<Job>,
    questions: Vec<Question>,
    aborted: usize,
    events: Vec<Event>,
}

/// What a caller receives.
#[derive(Debug, PartialEq)]
enum Got {
    Ack(String),
    Result(String, String),
    Error(String, u32),
}

fn ack(id: &str) -> Got {
    Got::Ack(id.to_owned())
}

fn result(id: &str, text: &str) -> Got {
    Got::Result(id.to_owned(), text.to_owned())
}

fn error(id: &str, code: u32) -> Got {
    Got::Error(id.to_owned(), code)
}

impl Callee {
    fn new(config: Config) -> Self {
        #[expect(clippy::disallowed_methods, reason = "virtual time begins somewhere")]
        let now = Instant::now();
        let config = config.streams(true);
        let mut session = Session::client(now, Participant::new("phone", "PA_0"), config, [7; 32]);
        let tool = |name: &str| Tool::new(name.parse().unwrap(), "");
        session.offer(now, vec![tool("get_battery"), tool("set_lamp")]).unwrap();
        let (sent, jobs, questions, events) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { session, now, sent, frames: Vec::new(), jobs, questions, aborted: 0, events }
    }

    /// A client and the agent `agent` in its first join.
    fn with_agent() -> Self {
        let mut callee = Self::new(Config::default().answer_rpc());
        callee.join(agent("PA_1"));
        callee
    }

    fn handle(&mut self, event: TransportEvent) {
        self.session.handle_event(self.now, event);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.session.poll_output() {
            match output {
                Output::Transmit(packet) if packet.form != Form::Data => self.sent.push(packet),
                Output::Transmit(packet) => self.frames.extend(Frame::decode(packet.payload).ok()),
                Output::Execute(job) => self.jobs.push(job),
                Output::Ask(question) => self.questions.push(question),
                Output::Abort { .. } => self.aborted += 1,
                Output::Event(event) => self.events.push(event),
                other => panic!("{other:?}"),
            }
        }
    }

    fn join(&mut self, who: Participant) {
        self.handle(TransportEvent::Joined(who));
    }

    /// Lets time pass, and handles the timers meanwhile.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.session.poll_timeout().filter(|due| *due <= until) {
            self.now = due.max(self.now);
            self.session.handle_timeout(self.now);
            self.drain();
        }
        self.now = until;
    }

    fn call(&mut self, from: &Peer, id: &str, method: &str, payload: &str) {
        self.request(from, RpcRequest::new(id, method, payload.to_owned(), 10_000));
    }

    fn request(&mut self, from: &Peer, request: RpcRequest) {
        let message = RpcMessage::Request(request);
        self.handle(TransportEvent::Rpc { from: Some(from.clone()), message });
    }

    fn parts(&mut self, from: &Peer, parts: impl IntoIterator<Item = StreamPart>) {
        for part in parts {
            self.handle(TransportEvent::Stream { from: from.clone(), part });
        }
    }

    /// Ends the only job that has not ended.
    fn settle(&mut self, outcome: Result<Value, ToolError>) {
        let job = self.jobs.pop().expect("a job");
        assert!(self.jobs.is_empty());
        self.session.settle(self.now, job.key, outcome);
        self.drain();
    }

    /// Returns the last packet as an error: its code, its message, and the code and message in its data.
    fn refusal(&self) -> (u32, String, String, String) {
        let Some(Form::Rpc(RpcMessage::Response(it))) = self.sent.last().map(|packet| &packet.form) else {
            panic!("{:?}", self.sent)
        };
        let error = it.outcome.as_ref().unwrap_err();
        let data: serde_json::Value = serde_json::from_str(&error.data).unwrap();
        assert_eq!(data.as_object().unwrap().len(), 2, "{data}");
        let text = |key: &str| data[key].as_str().unwrap().to_owned();
        (error.code, error.message.clone(), text("code"), text("message"))
    }

    /// Asserts that the last packet says that the arguments are invalid.
    fn refused_its_arguments(&self, what: &str) {
        let (code, message, ours, text) = self.refusal();
        assert_eq!((code, &*ours), (1500, "invalid_parameters"), "{what}");
        assert!(message.starts_with("invalid_parameters: ") && message.len() <= 256, "{what}: {message}");
        assert!(message.ends_with(&*text) || message.len() == 256, "{what}: {message} and {text}");
    }

    /// Returns what was sent to this participant since the last look.
    fn got(&mut self, to: &str) -> Vec<Got> {
        let (theirs, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.sent)
            .into_iter()
            .partition(|packet| packet.to.iter().all(|it| it.as_str() == to));
        self.sent = others;
        theirs.iter().map(got).collect()
    }

    fn count(&self, counter: Counter) -> u64 {
        self.session.stats().count(counter)
    }
}

fn got(packet: &Packet) -> Got {
    assert_eq!((packet.lane, packet.to.len()), (Lane::Reliable, 1));
    // Nothing overtakes an acknowledgement: SDKs ignore a response that comes before it.
    assert_eq!(packet.overtakes, matches!(packet.form, Form::Rpc(RpcMessage::Ack { .. })));
    let text = |bytes: &Bytes| std::str::from_utf8(bytes).unwrap().to_owned();
    match &packet.form {
        Form::Rpc(RpcMessage::Ack { id }) => Got::Ack(id.clone()),
        Form::Rpc(RpcMessage::Response(it)) => match &it.outcome {
            Ok(payload) => Got::Result(it.id.clone(), text(payload)),
            Err(error) => {
                assert!(error.message.len() <= 256 && error.data.len() <= 15_360);
                Got::Error(it.id.clone(), error.code)
            }
        },
        Form::Text(stream) => {
            assert_eq!(packet.topic, RPC_RESPONSE_TOPIC);
            Got::Result(stream.attributes["lk.rpc_request_id"].clone(), text(&plain(packet, stream)))
        }
        other => panic!("{other:?}"),
    }
}

/// An agent whose SDK announces what those of 2026 do.
fn agent(sid: &str) -> Participant {
    Participant::new("agent", sid).agent(true).client_protocol(2).inflates(true)
}

fn peer(identity: &str, sid: &str) -> Peer {
    Peer::new(identity, sid)
}

fn header(id: &str, method: &str, length: usize) -> StreamHeader {
    let mut header = StreamHeader::new(format!("s{id}"), RPC_REQUEST_TOPIC, length as u64);
    header.kind = StreamKind::Text;
    for (key, value) in [("id", id), ("method", method), ("response_timeout_ms", "10000"), ("version", "2")] {
        header.attributes.insert(format!("lk.rpc_request_{key}"), value.to_owned());
    }
    header
}

/// A request of version 2 with its payload in its header.
fn inline(id: &str, method: &str, payload: &str) -> StreamPart {
    let mut header = header(id, method, payload.len());
    header.inline = Some(payload.to_owned().into());
    StreamPart::Header(header)
}

/// A request of version 2 in chunks.
fn chunked(id: &str, method: &str, payload: &str) -> Vec<StreamPart> {
    let head = header(id, method, payload.len());
    let mut stream = TextStream::new(payload.len());
    stream.attributes = head.attributes;
    let mut packet = Packet::text("phone".into(), RPC_REQUEST_TOPIC, payload.to_owned(), stream);
    packet.stream = Some(head.id);
    StreamParts::of(&packet).collect()
}

fn value(json: serde_json::Value) -> Value {
    Value::from(json)
}

#[test]
fn request_of_the_assistant_is_acknowledged_runs_and_is_answered() {
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    callee.call(&agent, "r1", "set_lamp", r#"{"on": true}"#);
    assert_eq!(callee.got("agent"), [ack("r1")]);
    let job = &callee.jobs[0];
    assert_eq!((job.tool.as_str(), job.caller.as_str(), job.call.as_str()), ("set_lamp", "agent", "r1"));
    assert_eq!(job.arguments, value(serde_json::json!({"on": true})));
    // The timeout on the wire, and the 7 s that LiveKit's core takes off before.
    assert_eq!(job.limit, 17 * SECOND);
    assert_eq!(callee.session.bound().map(|it| it.as_str()), Some("agent"));
    callee.settle(Ok(value(serde_json::json!({"value": 0.8}))));
    assert_eq!(callee.got("agent"), [result("r1", "0.8")]);
    // No arguments are an empty object.
    callee.call(&agent, "r2", "get_battery", "");
    callee.settle(Ok(value(serde_json::json!({"level": 0.8}))));
    assert_eq!(callee.got("agent"), [ack("r2"), result("r2", r#"{"level":0.8}"#)]);
}

#[test]
fn stream_is_acknowledged_at_its_header_and_answered_by_a_stream() {
    for (protocol, in_header) in [(2, true), (1, false)] {
        let mut callee = Callee::new(Config::default().answer_rpc());
        callee.join(agent("PA_1").client_protocol(protocol));
        let agent = peer("agent", "PA_1");
        callee.parts(&agent, [inline("r1", "get_battery", "{}")]);
        assert_eq!(callee.got("agent"), [ack("r1")]);
        callee.settle(Ok(value(serde_json::json!({"value": "x".repeat(100)}))));
        let Form::Text(stream) = &callee.sent[0].form else { panic!("{:?}", callee.sent) };
        assert_eq!((stream.inline, stream.compression), (in_header, Compression::None));
        assert_eq!(callee.got("agent"), [result("r1", &format!("\"{}\"", "x".repeat(100)))]);

        let payload = format!(r#"{{"text": "{}"}}"#, "ü".repeat(20_000));
        let mut parts = chunked("r2", "set_lamp", &payload);
        let rest = parts.split_off(1);
        callee.parts(&agent, parts);
        assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![ack("r2")], 0));
        callee.parts(&agent, rest);
        assert_eq!(callee.jobs[0].arguments.to_json().to_string().len(), payload.len() - 1);
        callee.settle(Ok(value(serde_json::json!({"value": "y".repeat(100_000)}))));
        let Form::Text(stream) = &callee.sent[0].form else { panic!("{:?}", callee.sent) };
        let is_compressed = cfg!(feature = "deflate") && protocol == 2;
        assert_eq!(stream.compression == Compression::Deflate, is_compressed);
        assert_eq!(callee.got("agent"), [result("r2", &format!("\"{}\"", "y".repeat(100_000)))]);
    }
}

#[test]
fn nothing_is_answered_by_default() {
    let mut callee = Callee::new(Config::default());
    callee.join(agent("PA_1"));
    let agent = peer("agent", "PA_1");
    callee.call(&agent, "r1", "get_battery", "{}");
    callee.parts(&agent, [inline("r2", "get_battery", "{}")]);
    callee.parts(&agent, chunked("r3", "get_battery", "{}"));
    assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![], 0));
    assert_eq!((callee.session.bound(), callee.count(Counter::Held)), (None, 0));
}

#[test]
fn sec_i11_stranger_is_refused_at_most_50_times_a_second() {
    let mut callee = Callee::with_agent();
    callee.join(Participant::new("stranger", "PA_2"));
    let stranger = peer("stranger", "PA_2");
    let mut answers = Vec::new();
    for n in 0..100 {
        let (v1, v2) = (format!("v1-{n}"), format!("v2-{n}"));
        callee.call(&stranger, &v1, "get_battery", "{}");
        callee.parts(&stranger, chunked(&v2, "get_battery", &" ".repeat(40_000)));
        answers.extend([ack(&v1), error(&v1, 1500), ack(&v2), error(&v2, 1500)]);
    }
    assert_eq!((callee.jobs.len(), callee.session.bound()), (0, None));
    assert_eq!(callee.count(Counter::Unauthorized), 200);
    // The others are refused later, in their order, and none is acknowledged before.
    for answers in answers.chunks(2 * 50) {
        assert_eq!(callee.got("stranger"), answers);
        callee.pass(SECOND);
    }
    assert!(callee.got("stranger").is_empty());
    callee.pass(SECOND);
    for id in ["later", "at once"] {
        callee.call(&stranger, id, "get_battery", "{}");
        assert_eq!(callee.refusal().2, "permission_denied");
        assert_eq!(callee.got("stranger"), [ack(id), error(id, 1500)]);
    }
    // The agent is not affected.
    callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
    assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![ack("r1")], 1));
}

#[test]
fn sec_i11_agent_that_is_not_bound_is_refused() {
    let mut callee = Callee::with_agent();
    callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
    callee.join(Participant::new("other", "PA_2").agent(true));
    callee.call(&peer("other", "PA_2"), "r2", "get_battery", "{}");
    let (code, _, ours, text) = callee.refusal();
    assert_eq!((code, &*ours), (1500, "not_bound"), "1400 would say that there is no such tool");
    assert!(text.starts_with("this client is bound to another assistant, agent"), "{text}");
    assert_eq!((callee.got("other"), callee.jobs.len()), (vec![ack("r2"), error("r2", 1500)], 1));
}

#[test]
fn stranger_that_called_is_not_bound_when_it_becomes_an_agent() {
    let mut callee = Callee::new(Config::default().answer_rpc());
    callee.join(Participant::new("other", "PA_2"));
    callee.call(&peer("other", "PA_2"), "r1", "get_battery", "{}");
    callee.join(Participant::new("other", "PA_2").agent(true));
    assert_eq!(callee.session.bound(), None);
    callee.call(&peer("other", "PA_2"), "r2", "get_battery", "{}");
    assert_eq!(callee.session.bound().map(|it| it.as_str()), Some("other"));
}

#[test]
fn calls_of_the_server_are_refused_at_most_50_times_a_second() {
    let mut callee = Callee::with_agent();
    let call = |callee: &mut Callee, n: usize| {
        let id = format!("RPC_{n}");
        callee.call(&peer(&id, ""), &id, "get_battery", "{}");
        let answer = callee.got(&id);
        assert!(answer.is_empty() || answer == [error(&id, 1500)]);
        answer.len()
    };
    assert_eq!((0..100).map(|n| call(&mut callee, n)).sum::<usize>(), 50);
    assert_eq!((callee.jobs.len(), callee.count(Counter::Unauthorized)), (0, 100));
    callee.pass(SECOND);
    for n in 50..100 {
        let id = format!("RPC_{n}");
        assert_eq!(callee.got(&id), [error(&id, 1500)], "it waited for the next second");
    }
    callee.pass(SECOND);
    assert_eq!(call(&mut callee, 100), 1);
    // A packet without a sender cannot be answered.
    let message = RpcMessage::Request(RpcRequest::new("r", "get_battery", "{}", 1_000));
    callee.handle(TransportEvent::Rpc { from: None, message });
    assert_eq!((callee.sent.len(), callee.count(Counter::NoSender)), (0, 1));
}

#[test]
fn methods_of_livekit_bind_nobody() {
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    callee.call(&agent, "r1", "lk.anything", "{}");
    callee.parts(&agent, [inline("r2", "lk.anything", "{}")]);
    assert_eq!(callee.got("agent"), [ack("r1"), error("r1", 1400), ack("r2"), error("r2", 1400)]);
    assert_eq!(callee.session.bound(), None);
    assert_eq!((callee.count(Counter::Unauthorized), callee.jobs.len()), (2, 0));
}

#[test]
fn named_caller_needs_not_be_the_assistant() {
    let mut callee = Callee::new(Config::default().rpc_caller("panel"));
    callee.join(agent("PA_1"));
    callee.join(Participant::new("panel", "PA_2"));
    callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
    callee.settle(Ok(Value::empty()));
    callee.call(&peer("panel", "PA_2"), "r1", "get_battery", "{}");
    callee.settle(Ok(value(serde_json::json!({"value": 1}))));
    assert_eq!(callee.got("panel"), [ack("r1"), result("r1", "1")]);
    assert_eq!(callee.session.bound().map(|it| it.as_str()), Some("agent"));
    // Its name in another join that nobody announced proves nothing.
    callee.call(&peer("panel", "PA_9"), "r2", "get_battery", "{}");
    assert_eq!((callee.got("panel"), callee.jobs.len()), (vec![], 0));
}

#[test]
fn unknown_tool_is_an_unsupported_method() {
    let mut callee = Callee::with_agent();
    callee.call(&peer("agent", "PA_1"), "r1", "fly", "{}");
    assert_eq!(callee.got("agent"), [ack("r1"), error("r1", 1400)]);
}

#[test]
fn payload_that_is_no_arguments_is_refused_and_nothing_runs() {
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    let payloads = [&b"[1]"[..], b"\"[1]\"", b"7", b"{", b"{\"a\": \"\xff\"}", b"text"];
    for (n, payload) in payloads.iter().enumerate() {
        let id = format!("r{n}");
        callee.request(&agent, RpcRequest::new(&*id, "get_battery", Bytes::from_static(payload), 1_000));
        callee.refused_its_arguments(&String::from_utf8_lossy(payload));
        callee.sent.clear();
    }
    let huge = Bytes::from(vec![b' '; (16 << 20) + 1]);
    callee.request(&agent, RpcRequest::new("huge", "get_battery", huge, 1_000));
    callee.refused_its_arguments("more than 16 MiB");
    assert!(callee.refusal().3.contains("16777217 bytes; the limit is 16777216"), "{:?}", callee.refusal());
    assert!(callee.jobs.is_empty());
}

#[test]
fn other_version_and_missing_attributes_are_refused() {
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    let mut request = RpcRequest::new("r1", "get_battery", "{}", 1_000);
    for (version, code) in [(2, 1404), (7, 1404), (0, 1500)] {
        request.version = version;
        callee.request(&agent, request.clone());
        assert_eq!(callee.got("agent"), [ack("r1"), error("r1", code)], "{version}");
    }
    callee.call(&agent, "r1", "", "{}");
    assert_eq!(callee.got("agent"), [ack("r1"), error("r1", 1500)]);
    for (key, value, code) in [
        ("version", Some("1"), 1404),
        ("version", Some("two"), 1500),
        ("version", None, 1500),
        ("method", None, 1500),
        ("response_timeout_ms", None, 1500),
        ("response_timeout_ms", Some("-1"), 1500),
        ("response_timeout_ms", Some("4294967296"), 1500),
    ] {
        let StreamPart::Header(mut header) = inline("r2", "get_battery", "{}") else { panic!() };
        let key = format!("lk.rpc_request_{key}");
        match value {
            Some(value) => header.attributes.insert(key.clone(), value.to_owned()),
            None => header.attributes.remove(&key),
        };
        callee.parts(&agent, [StreamPart::Header(header)]);
        assert_eq!(callee.got("agent"), [ack("r2"), error("r2", code)], "{key} {value:?}");
    }
    // Without an id nothing can be answered.
    callee.call(&agent, "", "get_battery", "{}");
    callee.call(&agent, &"i".repeat(129), "get_battery", "{}");
    assert_eq!((callee.sent.len(), callee.jobs.len(), callee.count(Counter::Malformed)), (0, 0, 2));
}

#[test]
fn time_limit_is_that_of_the_request_and_7_s_up_to_the_longest_call() {
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    for (asked, limit) in [(0, 22_000), (1_000, 8_000), (592_999, 599_999), (u32::MAX, 600_000)] {
        callee.request(&agent, RpcRequest::new(format!("r{asked}"), "get_battery", "{}", asked));
        assert_eq!(callee.jobs[0].limit, limit * MS, "{asked}");
        callee.settle(Ok(Value::empty()));
    }
    callee.got("agent");
    callee.request(&agent, RpcRequest::new("late", "get_battery", "{}", 1_000));
    callee.pass(7_999 * MS);
    assert_eq!((callee.got("agent"), callee.aborted), (vec![ack("late")], 0));
    callee.pass(MS);
    assert_eq!((callee.got("agent"), callee.aborted), (vec![error("late", 1502)], 1));
}

#[test]
fn repeated_request_runs_once_and_has_the_same_answer() {
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    callee.call(&agent, "r1", "get_battery", "{}");
    callee.call(&agent, "r1", "get_battery", "{}");
    assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![ack("r1"), ack("r1")], 1));
    callee.settle(Ok(value(serde_json::json!({"value": 1}))));
    assert_eq!(callee.got("agent"), [result("r1", "1")]);
    callee.call(&agent, "r1", "get_battery", "{}");
    assert_eq!(callee.got("agent"), [ack("r1"), result("r1", "1")]);
    for (method, payload) in [("set_lamp", "{}"), ("get_battery", r#"{"a": 1}"#)] {
        callee.call(&agent, "r1", method, payload);
        assert_eq!(callee.got("agent"), [ack("r1"), error("r1", 1500)]);
    }
    // As a stream, too. The answer has the form of the first request.
    callee.parts(&agent, [inline("r1", "get_battery", "{}")]);
    assert_eq!(callee.got("agent"), [ack("r1"), result("r1", "1")]);
    // A failed request does not run again either.
    callee.call(&agent, "r2", "get_battery", "{}");
    callee.settle(Err("broken".into()));
    callee.call(&agent, "r2", "get_battery", "{}");
    assert_eq!(callee.got("agent"), [ack("r2"), error("r2", 1500), ack("r2"), error("r2", 1500)]);
    assert_eq!((callee.jobs.len(), callee.count(Counter::Duplicate)), (0, 4));
    // It is remembered for a minute after its answer was sent last.
    callee.pass(59 * SECOND);
    callee.call(&agent, "r1", "get_battery", "{}");
    assert_eq!(callee.got("agent"), [ack("r1"), result("r1", "1")]);
    callee.pass(61 * SECOND);
    callee.call(&agent, "r1", "get_battery", "{}");
    assert_eq!(callee.jobs.len(), 1);
}

#[test]
fn request_of_an_unannounced_sender_waits_up_to_4_s() {
    let mut callee = Callee::new(Config::default().answer_rpc());
    let agent_peer = peer("agent", "PA_1");
    callee.call(&agent_peer, "r1", "get_battery", "{}");
    callee.parts(&agent_peer, [inline("r2", "get_battery", "{}")]);
    callee.parts(&agent_peer, chunked("r3", "get_battery", &" ".repeat(40_000)));
    assert_eq!((callee.sent.len(), callee.jobs.len(), callee.count(Counter::Held)), (0, 0, 7));
    callee.pass(3_900 * MS);
    callee.join(agent("PA_1"));
    assert_eq!(callee.got("agent"), [ack("r1"), ack("r2"), ack("r3")]);
    assert_eq!(callee.jobs.len(), 3);

    let mut callee = Callee::new(Config::default().answer_rpc());
    callee.call(&agent_peer, "r1", "get_battery", "{}");
    callee.pass(4 * SECOND);
    callee.join(agent("PA_1"));
    assert_eq!((callee.sent.len(), callee.jobs.len(), callee.count(Counter::HoldExpired)), (0, 0, 1));
}

/// Of an identity that joins again and again before the server announces it.
#[test]
fn space_of_waiting_items_is_free_when_their_join_has_ended() {
    let mut callee = Callee::new(Config::default().answer_rpc());
    let payload = format!("{{\"text\":\"{}\"}}", "x".repeat(10_000));
    for join in 0..200 {
        let who = peer("agent", &format!("PA_{join}"));
        callee.call(&who, &format!("r{join}"), "get_battery", &payload);
        callee.handle(TransportEvent::Left(who));
    }
    callee.call(&peer("agent", "PA_200"), "r200", "get_battery", &payload);
    callee.join(agent("PA_200"));
    assert_eq!((callee.jobs.len(), callee.count(Counter::HoldExpired)), (1, 0));
}

#[test]
fn sec_i11_sid_that_was_not_announced_with_the_identity_has_no_rights() {
    let mut callee = Callee::with_agent();
    // An agent may sign a text header as somebody else. The sid stays its own.
    callee.join(Participant::new("evil", "PA_2").agent(true));
    callee.parts(&peer("agent", "PA_2"), [inline("r1", "get_battery", "{}")]);
    callee.call(&peer("agent", "PA_2"), "r2", "get_battery", "{}");
    callee.pass(5 * SECOND);
    assert_eq!((callee.sent.len(), callee.jobs.len(), callee.count(Counter::HoldExpired)), (0, 0, 2));
    assert_eq!(callee.session.bound(), None);
    // That of a join that has ended is not held.
    callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
    callee.call(&peer("agent", "PA_1"), "r3", "get_battery", "{}");
    assert_eq!((callee.sent.len(), callee.count(Counter::StaleSid)), (0, 1));
}

#[test]
fn sec_i11_chunks_of_another_sender_change_nothing() {
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    let payload = format!(r#"{{"text": "{}"}}"#, "x".repeat(20_000));
    let mut parts = chunked("r1", "set_lamp", &payload);
    let rest = parts.split_off(2);
    callee.parts(&agent, parts);
    let forged = StreamPart::Chunk { id: "sr1".into(), index: 1, bytes: "forged".into() };
    let end = StreamPart::Trailer { id: "sr1".into(), reason: String::new() };
    for from in [peer("evil", "PA_2"), peer("agent", "PA_2"), peer("evil", "PA_1")] {
        callee.parts(&from, [forged.clone(), end.clone()]);
    }
    callee.parts(&agent, rest);
    assert_eq!(callee.jobs[0].arguments.to_json().to_string().len(), payload.len() - 1);
    assert_eq!(callee.count(Counter::StreamUnknown), 6);
}

#[test]
fn stream_that_breaks_the_rules_is_refused() {
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    let payload = "{}".to_owned() + &" ".repeat(40_000);
    let whole = || chunked("r1", "get_battery", &payload);
    let without = |at: usize| {
        let mut parts = whole();
        parts.remove(at);
        parts
    };
    let mut shorter = whole();
    let StreamPart::Header(header) = &mut shorter[0] else { panic!() };
    header.length = Some(50_000);
    let mut longer = whole();
    let StreamPart::Header(header) = &mut longer[0] else { panic!() };
    header.length = Some(100);
    let mut huge = whole();
    let StreamPart::Header(header) = &mut huge[0] else { panic!() };
    header.length = Some((16 << 20) + 1);
    let mut other = whole();
    let StreamPart::Header(header) = &mut other[0] else { panic!() };
    header.compression = Compression::Other;
    for (n, parts) in [without(1), without(2), shorter, longer, huge, other].into_iter().enumerate() {
        callee.parts(&agent, parts);
        callee.refused_its_arguments(&n.to_string());
        assert_eq!(callee.got("agent"), [ack("r1"), error("r1", 1500)]);
    }
    assert!(callee.jobs.is_empty());
    // A stream that stalls.
    callee.parts(&agent, whole().into_iter().take(2));
    callee.pass(11 * SECOND);
    assert_eq!(callee.got("agent"), [ack("r1"), error("r1", 1500)]);
    // The caller may send the request again.
    callee.parts(&agent, whole());
    assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![ack("r1")], 1));
}

#[test]
fn sec_r5_compressed_request_is_expanded_and_a_bomb_is_not() {
    use std::io::Write;

    use flate2::{Compression as Level, write::DeflateEncoder};

    let deflated = |bytes: &[u8]| {
        let mut writer = DeflateEncoder::new(Vec::new(), Level::best());
        writer.write_all(bytes).unwrap();
        Bytes::from(writer.finish().unwrap())
    };
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    let payload = format!(r#"{{"text": "{}"}}"#, "x".repeat(200_000));
    let compressed = deflated(payload.as_bytes());
    let head = |id: &str, length: usize| {
        let mut header = header(id, "set_lamp", length);
        header.compression = Compression::Deflate;
        header
    };
    let with = |mut header: StreamHeader, bytes: Bytes| {
        header.inline = Some(bytes);
        StreamPart::Header(header)
    };
    callee.parts(&agent, [with(head("r1", payload.len()), compressed.clone())]);
    assert_eq!(callee.got("agent"), [ack("r1")]);
    callee.settle(Ok(Value::empty()));
    callee.got("agent");
    // In chunks, which end anywhere.
    let header = StreamPart::Header(head("r2", payload.len()));
    let chunks = compressed.chunks(7).enumerate().map(|(index, bytes)| StreamPart::Chunk {
        id: "sr2".into(),
        index: index as u64,
        bytes: Bytes::copy_from_slice(bytes),
    });
    let end = StreamPart::Trailer { id: "sr2".into(), reason: String::new() };
    callee.parts(&agent, [header].into_iter().chain(chunks).chain([end]));
    assert_eq!(callee.jobs[0].arguments.to_json().to_string().len(), payload.len() - 1);
    callee.settle(Ok(Value::empty()));
    callee.got("agent");
    let bomb = deflated(&vec![b' '; 64 << 20]);
    let mut without_length = head("r3", 0);
    without_length.length = None;
    let mut cut = compressed.clone();
    cut.truncate(compressed.len() - 1);
    for (n, (header, bytes)) in [
        (head("r3", 1_000), bomb.clone()),
        (head("r3", 16 << 20), bomb),
        (head("r3", 300_000), deflated(&vec![b' '; 300_000])),
        (head("r3", payload.len() - 1), compressed.clone()),
        (head("r3", payload.len() + 1), compressed.clone()),
        (head("r3", payload.len()), cut),
        (head("r3", payload.len()), Bytes::from_static(b"no deflate")),
        (without_length, compressed),
    ]
    .into_iter()
    .enumerate()
    {
        callee.parts(&agent, [with(header, bytes)]);
        callee.refused_its_arguments(&n.to_string());
        assert_eq!(callee.got("agent"), [ack("r3"), error("r3", 1500)], "{n}");
    }
    assert!(callee.jobs.is_empty());
}

#[test]
fn result_that_is_too_large_for_version_1_is_a_stream_or_an_error() {
    let large = || Ok(value(serde_json::json!({"value": "x".repeat(15_400)})));
    for (protocol, is_stream) in [(0, false), (1, true), (2, true)] {
        let mut callee = Callee::new(Config::default().answer_rpc());
        callee.join(agent("PA_1").client_protocol(protocol).inflates(false));
        callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
        callee.settle(large());
        let expected = match is_stream {
            true => result("r1", &format!("\"{}\"", "x".repeat(15_400))),
            false => error("r1", 1504),
        };
        assert_eq!(callee.got("agent"), [ack("r1"), expected], "{protocol}");
    }
}

#[test]
fn failure_has_our_code_in_its_data() {
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    callee.call(&agent, "r1", "get_battery", "{}");
    callee.settle(Err(ToolError::new("no_battery", "it is \"gone\"".repeat(1_000))));
    let Form::Rpc(RpcMessage::Response(response)) = &callee.sent[1].form else { panic!() };
    let error = response.outcome.as_ref().unwrap_err();
    assert_eq!((error.code, error.message.len()), (1500, 256));
    let data: serde_json::Value = serde_json::from_str(&error.data).unwrap();
    assert_eq!(data["code"], "no_battery");
    assert!(error.message.starts_with("no_battery: it is"));
}

#[test]
fn refused_consent_is_an_error_and_nothing_ran() {
    let mut callee = Callee::new(Config::default().answer_rpc().consent_available(true));
    let careful = Tool::new("erase".parse().unwrap(), "");
    let careful = careful.options(ToolOptions::default().consent(Consent::Always));
    callee.session.offer(callee.now, vec![careful]).unwrap();
    callee.join(agent("PA_1"));
    let agent = peer("agent", "PA_1");
    for (id, is_allowed) in [("r1", false), ("r2", true)] {
        callee.call(&agent, id, "erase", "{}");
        let question = callee.questions.pop().expect("a question");
        assert_eq!((question.caller.as_str(), callee.jobs.len()), ("agent", 0));
        callee.session.consent(callee.now, question.key, is_allowed);
        callee.drain();
        if is_allowed {
            callee.settle(Ok(Value::empty()));
            assert_eq!(callee.got("agent"), [ack("r2"), result("r2", "{}")]);
            continue;
        }
        let Form::Rpc(RpcMessage::Response(it)) = &callee.sent[1].form else { panic!("{:?}", callee.sent) };
        let refused = it.outcome.as_ref().unwrap_err();
        let data: serde_json::Value = serde_json::from_str(&refused.data).unwrap();
        assert_eq!((refused.code, &data["code"]), (1500, &"permission_denied".into()));
        assert_eq!(callee.got("agent"), [ack("r1"), error("r1", 1500)]);
    }
    // Nobody answers: the time limit of the call ends the question, too.
    callee.call(&agent, "r3", "erase", "{}");
    callee.pass(17 * SECOND);
    assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![ack("r3"), error("r3", 1500)], 0));
    // The client leaves: its answer says that nothing ran.
    callee.call(&agent, "r4", "erase", "{}");
    callee.session.close(callee.now);
    callee.drain();
    let last = callee.sent.iter().find_map(|packet| match &packet.form {
        Form::Rpc(RpcMessage::Response(it)) => it.outcome.as_ref().err(),
        _ => None,
    });
    let data: serde_json::Value = serde_json::from_str(&last.expect("an answer").data).unwrap();
    assert_eq!(data, serde_json::json!({"code": "busy", "message": "the client is leaving; nothing ran"}));
}

#[test]
fn caller_that_leaves_ends_its_calls() {
    let mut callee = Callee::with_agent();
    callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
    callee.got("agent");
    callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
    callee.pass(4_900 * MS);
    assert_eq!(callee.aborted, 0);
    callee.pass(200 * MS);
    assert_eq!((callee.aborted, callee.sent.len()), (1, 0));
    assert_eq!(callee.session.bound(), None);
    // Its SDK waits for the answer if it comes back later.
    callee.join(agent("PA_2"));
    assert_eq!((callee.refusal().0, &*callee.refusal().2), (1502, "cancelled"));
    assert_eq!(callee.got("agent"), [error("r1", 1502)]);
}

#[test]
fn caller_that_rejoins_gets_its_answer_and_may_call_again() {
    let mut callee = Callee::with_agent();
    callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
    callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
    let first = callee.jobs.pop().unwrap();
    callee.session.settle(callee.now, first.key, Ok(value(serde_json::json!({"value": 1}))));
    callee.drain();
    assert_eq!(callee.got("agent"), [ack("r1")]);
    callee.pass(SECOND);
    callee.join(agent("PA_2"));
    assert_eq!(callee.got("agent"), [result("r1", "1")]);
    // One id is one run, also in another join.
    callee.call(&peer("agent", "PA_2"), "r1", "get_battery", "{}");
    assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![ack("r1"), error("r1", 1500)], 0));
    callee.call(&peer("agent", "PA_2"), "r2", "get_battery", "{}");
    callee.pass(10 * SECOND);
    assert_eq!(
        (callee.jobs.len(), callee.aborted),
        (1, 0),
        "the grace period is over, and it has called again"
    );
    assert_eq!(callee.session.bound().map(|it| it.as_str()), Some("agent"));
}

#[test]
fn calls_beyond_the_limits_are_busy() {
    let mut config = Config::default().answer_rpc();
    config.caps.calls.open_per_peer = 3;
    config.caps.requests.calls_per_second = 5;
    let mut callee = Callee::new(config);
    callee.join(agent("PA_1"));
    let agent = peer("agent", "PA_1");
    for n in 0..3 {
        callee.call(&agent, &format!("r{n}"), "get_battery", "{}");
    }
    callee.got("agent");
    callee.call(&agent, "r3", "get_battery", "{}");
    let Form::Rpc(RpcMessage::Response(response)) = &callee.sent[1].form else { panic!() };
    let refused = response.outcome.as_ref().unwrap_err();
    assert!(
        refused.code == 1500 && refused.message.starts_with("busy: 3 calls are open"),
        "{}",
        refused.message
    );
    callee.got("agent");
    for job in std::mem::take(&mut callee.jobs) {
        callee.session.settle(callee.now, job.key, Ok(Value::empty()));
    }
    callee.drain();
    callee.got("agent");
    callee.call(&agent, "r3", "get_battery", "{}");
    assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![ack("r3")], 1), "nothing of it had run");
    callee.call(&agent, "r4", "get_battery", "{}");
    assert_eq!(callee.got("agent"), [ack("r4"), error("r4", 1500)], "six in one second");
    callee.pass(SECOND);
    callee.session.drain(callee.now);
    callee.call(&agent, "r4", "get_battery", "{}");
    assert_eq!(callee.got("agent"), [ack("r4"), error("r4", 1500)], "the client is leaving");
    assert_eq!(callee.count(Counter::Busy), 3);
}

#[test]
fn answered_request_makes_room_for_a_newer_one_and_an_unanswered_one_does_not() {
    let mut config = Config::default().answer_rpc();
    config.caps.requests.table_entries = 3;
    let mut callee = Callee::new(config);
    callee.join(agent("PA_1"));
    let agent = peer("agent", "PA_1");
    for n in 0..6 {
        let id = format!("r{n}");
        callee.call(&agent, &id, "get_battery", "{}");
        callee.settle(Ok(value(serde_json::json!({"value": n}))));
        assert_eq!(callee.got("agent"), [ack(&id), result(&id, &n.to_string())]);
        callee.pass(MS);
    }
    for n in 3..6 {
        callee.call(&agent, &format!("r{n}"), "get_battery", "{}");
        let id = format!("r{n}");
        assert_eq!(callee.got("agent"), [ack(&id), result(&id, &n.to_string())], "still remembered");
    }
    for n in 6..9 {
        callee.call(&agent, &format!("r{n}"), "get_battery", "{}");
    }
    callee.call(&agent, "r9", "get_battery", "{}");
    assert_eq!(callee.got("agent").last(), Some(&error("r9", 1500)), "three have no answer");
    // An answer that could not be sent keeps its place.
    let job = callee.jobs.remove(0);
    callee.session.settle(callee.now, job.key, Ok(value(serde_json::json!({"value": 6}))));
    callee.drain();
    let packet = callee.sent.last().unwrap().id;
    callee.sent.clear();
    callee.session.handle_send_failed(callee.now, packet, SendFailure::QueueFull);
    callee.drain();
    callee.call(&agent, "r9", "get_battery", "{}");
    assert_eq!(callee.got("agent"), [ack("r9"), error("r9", 1500)]);
    callee.pass(SECOND);
    callee.got("agent");
    callee.call(&agent, "r9", "get_battery", "{}");
    assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![ack("r9")], 3));
}

#[test]
fn open_streams_of_one_caller_are_limited() {
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    for n in 0..5 {
        callee
            .parts(&agent, chunked(&format!("r{n}"), "get_battery", &" ".repeat(40_000)).into_iter().take(2));
    }
    let acks = (0..5).map(|n| ack(&format!("r{n}")));
    assert_eq!(callee.got("agent"), acks.chain([error("r4", 1500)]).collect::<Vec<_>>());
    let last = chunked("r0", "get_battery", &" ".repeat(40_000)).into_iter().skip(2);
    callee.parts(&agent, last);
    assert_eq!(callee.jobs.len(), 1);
}

#[test]
fn answers_beyond_the_limit_are_dropped_and_their_requests_do_not_run_again() {
    let mut config = Config::default().answer_rpc();
    config.caps.requests.table_bytes = 50_000;
    let mut callee = Callee::new(config);
    callee.join(agent("PA_1").inflates(false));
    let agent = peer("agent", "PA_1");
    for n in 0..3 {
        callee.parts(&agent, [inline(&format!("r{n}"), "get_battery", "{}")]);
        callee.settle(Ok(value(serde_json::json!({"value": "x".repeat(20_000)}))));
        callee.pass(10 * MS);
    }
    callee.got("agent");
    callee.parts(&agent, [inline("r0", "get_battery", "{}")]);
    assert_eq!(callee.got("agent"), [ack("r0"), error("r0", 1500)]);
    callee.parts(&agent, [inline("r2", "get_battery", "{}")]);
    assert!(matches!(&callee.got("agent")[..], [Got::Ack(_), Got::Result(_, text)] if text.len() == 20_002));
    assert!(callee.jobs.is_empty());
}

#[test]
fn answer_beyond_those_that_were_never_sent_is_too_large() {
    let mut config = Config::default().answer_rpc();
    config.caps.requests.table_bytes = 50_000;
    let mut callee = Callee::new(config);
    callee.join(agent("PA_1").inflates(false));
    let agent_1 = peer("agent", "PA_1");
    for n in 0..3 {
        callee.parts(&agent_1, [inline(&format!("r{n}"), "get_battery", "{}")]);
    }
    callee.got("agent");
    callee.handle(TransportEvent::Left(agent_1));
    for job in std::mem::take(&mut callee.jobs) {
        let outcome = Ok(value(serde_json::json!({"value": "x".repeat(20_000)})));
        callee.session.settle(callee.now, job.key, outcome);
    }
    callee.drain();
    assert_eq!(callee.got("agent"), []);
    callee.join(agent("PA_2").inflates(false));
    let got = callee.got("agent");
    assert_eq!(got.iter().filter(|it| matches!(it, Got::Error(_, 1504))).count(), 1, "{got:?}");
    assert_eq!(got.iter().filter(|it| matches!(it, Got::Result(..))).count(), 2);
}

#[test]
fn answer_that_was_not_sent_is_sent_again() {
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    let fail = |callee: &mut Callee, why: SendFailure| {
        let packet = callee.sent.last().unwrap().id;
        callee.sent.clear();
        callee.session.handle_send_failed(callee.now, packet, why);
        callee.drain();
    };
    callee.call(&agent, "r1", "get_battery", "{}");
    callee.settle(Ok(value(serde_json::json!({"value": 1}))));
    fail(&mut callee, SendFailure::QueueFull);
    assert_eq!(callee.got("agent"), []);
    callee.pass(SECOND);
    assert_eq!(callee.got("agent"), [result("r1", "1")]);
    callee.call(&agent, "r2", "get_battery", "{}");
    callee.settle(Ok(value(serde_json::json!({"value": 2}))));
    callee.handle(TransportEvent::ConnectionState(ConnectionState::Reconnecting));
    fail(&mut callee, SendFailure::Interrupted);
    callee.pass(SECOND);
    assert_eq!(callee.got("agent"), []);
    callee.handle(TransportEvent::ConnectionState(ConnectionState::Connected));
    assert_eq!(callee.got("agent"), [result("r2", "2")]);
    callee.call(&agent, "r3", "get_battery", "{}");
    callee.settle(Ok(value(serde_json::json!({"value": 3}))));
    fail(&mut callee, SendFailure::TooLarge { size: 70_000, limit: 64_000 });
    assert_eq!(callee.got("agent"), [error("r3", 1504)]);
}

#[test]
fn calls_end_when_the_client_leaves() {
    let mut callee = Callee::with_agent();
    callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
    callee.got("agent");
    callee.session.close(callee.now);
    callee.drain();
    assert_eq!((callee.got("agent"), callee.aborted), (vec![error("r1", 1500)], 1));
}

#[test]
fn acknowledgements_and_responses_to_a_client_are_ignored() {
    let mut callee = Callee::with_agent();
    let from = Some(peer("agent", "PA_1"));
    for message in [
        RpcMessage::Ack { id: "r1".into() },
        RpcMessage::Response(toolbridge::transport::RpcResponse::new("r1", Ok("1".into()))),
    ] {
        callee.handle(TransportEvent::Rpc { from: from.clone(), message });
    }
    assert_eq!((callee.sent.len(), callee.count(Counter::NotPermitted)), (0, 2));
    let codes = callee.events.iter().filter(|it| matches!(it, Event::Violation { .. })).count();
    assert_eq!(codes, 1);
}

/// The agent shows an instance, as toolbridge's own assistant does.
fn shake_hands(callee: &mut Callee) {
    let meta = Meta::new().with_text("bridge.instance", "i1").with_bool("bridge.heard", true);
    let features = ["tool_use", "tool_register", "tool_ack"].map(String::from).to_vec();
    let it = with!(Configuration::default(), features = Some(features));
    send(callee, -1, &meta, &Message::Configuration(it));
}

fn send(callee: &mut Callee, stanza: i32, meta: &Meta, message: &Message) {
    let bytes = Frame::write(stanza, "room", meta, message).unwrap();
    callee.handle(TransportEvent::packet(peer("agent", "PA_1"), Lane::Reliable, bytes));
}

fn request_frame(id: &str, tool: &str) -> Message {
    let request = ToolUseRequest::new(id.parse().unwrap(), tool, Value::empty(), Ok(Execution::Client));
    Message::ToolUseRequest(request)
}

/// One id is one run, whichever form the second request has.
#[test]
fn request_by_rpc_and_one_in_a_frame_with_one_id_are_one_run() {
    for is_frame_first in [true, false] {
        let mut callee = Callee::new(Config::default().answer_rpc().room("room"));
        callee.join(agent("PA_1"));
        shake_hands(&mut callee);
        let in_frame =
            |callee: &mut Callee| send(callee, -2, &Meta::new(), &request_frame("x", "get_battery"));
        let by_rpc = |callee: &mut Callee| callee.call(&peer("agent", "PA_1"), "x", "get_battery", "{}");
        match is_frame_first {
            true => (in_frame(&mut callee), by_rpc(&mut callee)),
            false => (by_rpc(&mut callee), in_frame(&mut callee)),
        };
        assert_eq!((callee.jobs.len(), callee.count(Counter::Refused)), (1, 1), "{is_frame_first}");
        let refused = if is_frame_first { vec![ack("x"), error("x", 1500)] } else { vec![ack("x")] };
        assert_eq!(callee.got("agent"), refused);
        // The answer has the form of the request that runs.
        callee.settle(Ok(value(serde_json::json!({"value": 1}))));
        assert_eq!(callee.got("agent"), if is_frame_first { vec![] } else { vec![result("x", "1")] });
    }
}

/// 1400 says that there is no such tool and that nothing ran.
#[test]
fn tool_that_started_is_not_answered_as_an_unknown_method() {
    for has_started in [true, false] {
        let mut callee = Callee::with_agent();
        callee.call(&peer("agent", "PA_1"), "r1", "set_lamp", "{}");
        if has_started {
            callee.session.progress(callee.now, callee.jobs[0].key, Progress::started());
        }
        callee.settle(Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, "the lamp has no such tool")));
        let code = if has_started { 1500 } else { 1400 };
        assert_eq!(callee.got("agent"), [ack("r1"), error("r1", code)]);
    }
}

/// Callers choose the ids of their calls, so two may use one, and each call has a record of its own.
#[test]
fn calls_of_two_callers_with_one_id_have_their_own_records() {
    let mut callee = Callee::new(Config::default().rpc_caller("panel"));
    callee.join(agent("PA_1"));
    callee.join(Participant::new("panel", "PA_2"));
    callee.call(&peer("agent", "PA_1"), "1", "get_battery", "{}");
    callee.call(&peer("panel", "PA_2"), "1", "set_lamp", "{}");
    let second = callee.jobs.pop().unwrap();
    callee.session.settle(callee.now, second.key, Err("broken".into()));
    callee.drain();
    let outcomes = |callee: &Callee| {
        let mut records = callee.session.records();
        records.sort_by(|a, b| a.caller.cmp(&b.caller));
        records.into_iter().map(|it| (it.caller.to_string(), it.tool, it.outcome)).collect::<Vec<_>>()
    };
    let broken = ("panel".to_owned(), "set_lamp".to_owned(), Some(Err(ErrorCode::EXECUTION_ERROR)));
    let agents = |outcome| ("agent".to_owned(), "get_battery".to_owned(), outcome);
    assert_eq!(outcomes(&callee), [agents(None), broken.clone()]);
    callee.settle(Ok(Value::empty()));
    assert_eq!(outcomes(&callee), [agents(Some(Ok(()))), broken]);
    let by = |it: &Event| match it {
        Event::Settled { by, .. } => Some(by.to_string()),
        _ => None,
    };
    assert_eq!(callee.events.iter().filter_map(by).collect::<Vec<_>>(), ["panel", "agent"]);
}

/// Only the bound assistant may ask the person, whatever the form of its call.
#[test]
fn named_caller_that_is_not_the_assistant_asks_the_person_nothing() {
    let mut callee = Callee::new(Config::default().rpc_caller("panel").prompts(true));
    callee.join(agent("PA_1"));
    callee.join(Participant::new("panel", "PA_2"));
    let form = r#"{"text": "Card?", "schema": {}}"#;
    for prompt in ["bridge.permission", "bridge.choose", "bridge.authorize", "bridge.form"] {
        callee.call(&peer("panel", "PA_2"), prompt, prompt, form);
        assert_eq!(callee.refusal().2, "permission_denied", "{prompt}");
    }
    assert!(callee.jobs.is_empty());
    callee.call(&peer("agent", "PA_1"), "p", "bridge.form", form);
    assert_eq!(callee.jobs.len(), 1);
    // The echo reaches nobody.
    callee.call(&peer("panel", "PA_2"), "e", "bridge.echo", r#"{"a": 1}"#);
    assert_eq!(callee.got("panel").last(), Some(&result("e", r#"{"a":1}"#)));
}

/// An answer is for the join that asked, or for one of its identity that may call.
#[test]
fn answer_does_not_go_to_a_later_join_without_rights() {
    for may_call in [true, false] {
        let mut callee = Callee::with_agent();
        callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
        callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
        callee.pass(SECOND);
        callee.join(if may_call { agent("PA_2") } else { Participant::new("agent", "PA_2") });
        callee.got("agent");
        callee.settle(Ok(value(serde_json::json!({"value": 1}))));
        callee.pass(SECOND);
        assert_eq!(callee.got("agent").contains(&result("r1", "1")), may_call);
    }
}

/// An SDK keeps its requests when it joins again, so one that calls again keeps its running calls.
#[test]
fn running_call_goes_on_when_its_caller_rejoins_and_calls_again() {
    for calls_again in [true, false] {
        let mut callee = Callee::with_agent();
        callee.call(&peer("agent", "PA_1"), "slow", "get_battery", "{}");
        let slow = callee.jobs.pop().unwrap();
        callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
        callee.pass(SECOND);
        callee.join(agent("PA_2"));
        if calls_again {
            callee.call(&peer("agent", "PA_2"), "r2", "set_lamp", "{}");
            callee.settle(Ok(Value::empty()));
        }
        callee.pass(5 * SECOND);
        callee.session.settle(callee.now, slow.key, Ok(value(serde_json::json!({"value": 1}))));
        callee.drain();
        assert_eq!(callee.got("agent").contains(&result("slow", "1")), calls_again);
    }
}

/// The join in which it has called by RPC has its own grace period, also if an unannounced one follows it.
#[test]
fn running_call_goes_on_for_the_grace_period_when_its_caller_shows_itself_in_an_unannounced_join() {
    let mut callee = Callee::new(Config::default().room("room").answer_rpc().assistant("agent"));
    callee.join(agent("PA_1"));
    callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
    callee.pass(SECOND);
    callee.join(agent("PA_2"));
    callee.call(&peer("agent", "PA_2"), "slow", "get_battery", "{}");
    callee.pass(3_500 * MS);
    let meta = Meta::new().with_text("bridge.instance", "0123").with_bool("bridge.heard", true);
    // It names another room, so no calls are possible in this join.
    let its = Message::Configuration(Configuration::default());
    let frame = Frame::write(-1, "lobby", &meta, &its).unwrap();
    callee.handle(TransportEvent::packet(peer("agent", "PA_3"), Lane::Reliable, frame));
    callee.pass(SECOND); // five seconds after the first leave
    assert_eq!(callee.aborted, 0);
    callee.pass(4 * SECOND);
    assert_eq!(callee.aborted, 1);
}

/// A call that is refused does not bind its caller, in either form. The echo is accepted, and binds.
#[test]
fn refused_request_binds_nobody() {
    let bound = |callee: &Callee| callee.session.bound().is_some();
    let agent_peer = peer("agent", "PA_1");
    let mut callee = Callee::with_agent();
    callee.call(&agent_peer, "r1", "fly", "{}");
    callee.call(&agent_peer, "r2", "get_battery", "[1]");
    assert_eq!(callee.got("agent"), [ack("r1"), error("r1", 1400), ack("r2"), error("r2", 1500)]);
    assert!(!bound(&callee));
    callee.call(&agent_peer, "r3", "bridge.echo", "{}");
    assert!(bound(&callee));

    let mut callee = Callee::new(Config::default().room("room"));
    callee.join(agent("PA_1"));
    send(&mut callee, -1, &Meta::new(), &request_frame("c1", "fly"));
    assert!(!bound(&callee));
    let code =
        callee.frames.iter().find(|it| it.kind() == Kind::TOOL_USE_RESULT).unwrap().body().get("errorCode");
    assert_eq!(code.unwrap().as_str(), Some("unknown_tool"));
    send(&mut callee, -2, &Meta::new(), &request_frame("c2", "get_battery"));
    assert!(bound(&callee) && callee.jobs.len() == 1);
}

/// What the header says is checked before the payload is read: the rights, the rate, the tool and the room.
#[test]
fn payload_of_a_request_that_is_refused_is_not_read() {
    let mut config = Config::default().answer_rpc();
    config.caps.requests.calls_per_second = 3;
    config.caps.calls.open_bytes = 60_000;
    let mut callee = Callee::new(config);
    callee.join(agent("PA_1"));
    let agent = peer("agent", "PA_1");
    let begin = |callee: &mut Callee, id: &str, method: &str| {
        callee.parts(&agent, chunked(id, method, &" ".repeat(40_000)).into_iter().take(1));
    };
    begin(&mut callee, "r1", "fly");
    assert_eq!(callee.got("agent"), [ack("r1"), error("r1", 1400)]);
    callee.call(&agent, "r2", "get_battery", &format!(r#"{{"a": "{}"}}"#, "x".repeat(30_000)));
    assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![ack("r2")], 1));
    begin(&mut callee, "r3", "get_battery");
    assert_eq!(callee.refusal().3, "the limit is 60000 bytes of arguments in open calls; nothing ran");
    begin(&mut callee, "r4", "get_battery");
    assert_eq!(callee.refusal().3, "the limit is 3 calls a second; nothing ran");
    // None of the streams is open, so its parts are unknown.
    for id in ["r1", "r3", "r4"] {
        callee.parts(&agent, chunked(id, "get_battery", &" ".repeat(40_000)).into_iter().skip(1).take(1));
    }
    assert_eq!(callee.count(Counter::StreamUnknown), 3);
}

/// A client that may not send data runs nothing: no answer would arrive.
#[test]
fn request_to_a_client_that_may_not_send_data_does_not_run() {
    let mut callee = Callee::with_agent();
    callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
    callee.settle(Ok(Value::empty()));
    let packet = callee.sent.last().unwrap().id;
    callee.session.handle_send_failed(callee.now, packet, SendFailure::NotAllowed);
    callee.call(&peer("agent", "PA_1"), "r2", "get_battery", "{}");
    assert_eq!((callee.jobs.len(), callee.refusal().2), (0, "permission_denied".to_owned()));
}

/// An error that is too large for the transport itself is not sent again at once.
#[test]
fn error_that_does_not_fit_is_not_sent_again_at_once() {
    let mut callee = Callee::with_agent();
    callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
    callee.settle(Ok(value(serde_json::json!({"value": 1}))));
    for left in [1, 0] {
        let packet = callee.sent.last().unwrap().id;
        callee.sent.clear();
        callee.session.handle_send_failed(callee.now, packet, SendFailure::TooLarge { size: 7, limit: 3 });
        callee.drain();
        assert_eq!(callee.sent.len(), left);
    }
}

/// An answer that was given to the transport again is not sent once more if its first packet is reported as unsent, and
/// a request that is forgotten waits for nothing.
#[test]
fn answer_that_was_sent_again_or_forgotten_is_not_sent_once_more() {
    let mut callee = Callee::with_agent();
    let agent = peer("agent", "PA_1");
    callee.call(&agent, "r1", "get_battery", "{}");
    callee.settle(Ok(value(serde_json::json!({"value": 1}))));
    let first = callee.sent.last().unwrap().id;
    callee.call(&agent, "r1", "get_battery", "{}");
    let second = callee.sent.last().unwrap().id;
    callee.got("agent");
    callee.session.handle_send_failed(callee.now, first, SendFailure::QueueFull);
    callee.pass(2 * SECOND);
    assert_eq!(callee.got("agent"), []);
    callee.pass(62 * SECOND);
    callee.session.handle_send_failed(callee.now, second, SendFailure::QueueFull);
    callee.pass(2 * SECOND);
    assert_eq!(callee.got("agent"), []);
}

/// A question is withdrawn when the grace period of its caller is over, and the answer says that nothing ran.
#[test]
fn question_of_a_caller_that_is_away_ends_with_proof_that_nothing_ran() {
    let mut callee = Callee::new(Config::default().answer_rpc().consent_available(true));
    let careful = Tool::new("erase".parse().unwrap(), "");
    let careful = careful.options(ToolOptions::default().consent(Consent::Always));
    callee.session.offer(callee.now, vec![careful]).unwrap();
    callee.join(agent("PA_1"));
    callee.call(&peer("agent", "PA_1"), "r1", "erase", "{}");
    callee.got("agent");
    callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
    callee.pass(6 * SECOND);
    callee.join(agent("PA_2"));
    assert_eq!(callee.refusal().2, "permission_denied");
}

/// A process that is killed stays in the room for 20 s. While another agent waits, an assistant that calls by RPC alone is
/// pinged by RPC, and replaced after the grace period without a sign of life.
#[test]
fn agent_that_calls_by_rpc_and_is_gone_is_replaced_while_another_waits() {
    for is_alive in [true, false] {
        let mut callee = Callee::with_agent();
        callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
        callee.settle(Ok(Value::empty()));
        callee.got("agent");
        callee.pass(60 * SECOND);
        assert!(callee.sent.is_empty(), "nobody waits, so nobody is pinged");
        callee.join(Participant::new("other", "PA_2").agent(true));
        callee.call(&peer("other", "PA_2"), "r2", "get_battery", "{}");
        assert_eq!(callee.refusal().2, "not_bound");
        callee.got("other");
        let mut pings = 0;
        for _ in 0..80 {
            callee.pass(100 * MS);
            for packet in std::mem::take(&mut callee.sent) {
                let Form::Rpc(RpcMessage::Request(ping)) = packet.form else { panic!("{packet:?}") };
                assert_eq!((packet.to[0].as_str(), &*ping.method), ("agent", "toolbridge.ping"));
                pings += 1;
                if is_alive {
                    let from = Some(peer("agent", "PA_1"));
                    callee.handle(TransportEvent::Rpc { from, message: RpcMessage::Ack { id: ping.id } });
                }
            }
        }
        assert!((3..=8).contains(&pings), "{pings}");
        callee.call(&peer("other", "PA_2"), "r3", "get_battery", "{}");
        assert_eq!(callee.jobs.len(), usize::from(!is_alive), "{is_alive}");
        let bound = if is_alive { "agent" } else { "other" };
        assert_eq!(callee.session.bound().map(|it| it.as_str()), Some(bound));
    }
}

/// A stream ends with the join of its sender, so a request whose caller has left or moved meanwhile does not run.
#[test]
fn request_whose_caller_leaves_or_moves_while_its_stream_arrives_does_not_run() {
    for moves in [true, false] {
        let mut callee = Callee::with_agent();
        let mut parts = chunked("r1", "get_battery", &format!("{{}}{}", " ".repeat(40_000)));
        let rest = parts.split_off(2);
        callee.parts(&peer("agent", "PA_1"), parts);
        match moves {
            true => callee.join(agent("PA_2")),
            false => callee.handle(TransportEvent::Left(peer("agent", "PA_1"))),
        }
        callee.parts(&peer("agent", "PA_1"), rest.clone());
        callee.parts(&peer("agent", "PA_2"), rest);
        callee.pass(SECOND);
        assert!(callee.jobs.is_empty());
    }
}

#[path = "session_rpc_rights.rs"]
mod rights;

#[path = "session_rpc_refusals.rs"]
mod refusals;
