//! Calls by LiveKit's RPC of an assistant: how an app is called, whose answers count, and what each answer means.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::session_world::plain;

use bytes::Bytes;
use serde_json::json;
use toolbridge::{
    CallError, Config, ConnectionState, Event, Identity, Tool, Value,
    frame::{Configuration, ErrorMessage, Frame, Message, Meta},
    session::{CallKey, Counter, Output, Readiness, Request, SendFailure, Session},
    tools::{NotOffered, Reach, RegisterError},
    transport::{
        Compression, Form, Lane, Packet, Participant, Peer, RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC, RpcError,
        RpcMessage, RpcRequest, RpcResponse, STREAM_TOPIC, StreamHeader, StreamKind, StreamPart, StreamParts,
        TextStream, TransportEvent,
    },
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// An assistant that calls the app `web` by RPC, and what it has done.
struct Caller {
    session: Session,
    now: Instant,
    sent: Vec<Packet>,
    settled: BTreeMap<CallKey, Result<Value, CallError>>,
    events: Vec<Event>,
}

/// A request that was sent.
#[derive(Clone, Debug, PartialEq)]
struct Sent {
    version: u32,
    id: String,
    method: String,
    payload: String,
    timeout_ms: u32,
}

fn tool(name: &str) -> Tool {
    Tool::new(name.parse().unwrap(), "")
}

/// The app returns JSON.
fn config() -> Config {
    of_texts().rpc_json()
}

/// The app returns objects, arrays and texts.
fn of_texts() -> Config {
    Config::default().rpc_tool("web", tool("locate")).rpc_tool("web", tool("paint"))
}

/// The app in this join. Version 0 of the client protocol is that of older SDKs.
fn app(sid: &str, protocol: u32) -> Participant {
    Participant::new("web", sid).client_protocol(protocol).inflates(protocol >= 2)
}

fn local(sid: &str) -> Participant {
    Participant::new("agent", sid).agent(true).client_protocol(2).inflates(true)
}

fn web() -> Peer {
    Peer::new("web", "PA_1")
}

impl Caller {
    fn new(config: Config) -> Self {
        #[expect(clippy::disallowed_methods, reason = "virtual time begins somewhere")]
        let now = Instant::now();
        let session = Session::assistant(now, local("PA_0"), config.streams(true), [7; 32]);
        Self { session, now, sent: Vec::new(), settled: BTreeMap::new(), events: Vec::new() }
    }

    /// An assistant that the room has announced, and the app with this version of the client protocol.
    fn with(config: Config, protocol: u32) -> Self {
        let mut caller = Self::new(config);
        caller.handle(TransportEvent::Joined(local("PA_0")));
        caller.handle(TransportEvent::Joined(app("PA_1", protocol)));
        caller
    }

    fn handle(&mut self, event: TransportEvent) {
        self.session.handle_event(self.now, event);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.session.poll_output() {
            match output {
                Output::Transmit(packet) => self.sent.push(packet),
                Output::Settled { key, result } => assert!(self.settled.insert(key, result).is_none()),
                Output::Event(event) => self.events.push(event),
                other => panic!("{other:?}"),
            }
        }
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

    fn ask(&mut self, request: Request) -> Result<CallKey, CallError> {
        let key = self.session.call(self.now, request);
        self.drain();
        key
    }

    fn call(&mut self, tool: &str, arguments: serde_json::Value) -> CallKey {
        self.ask(Request::new(tool, Value::from(arguments))).unwrap()
    }

    /// Makes a call that is sent at once. Returns its key and the id of its request.
    fn sent_call(&mut self) -> (CallKey, String) {
        let key = self.call("locate", json!({}));
        let sent = self.requests();
        assert_eq!(sent.len(), 1, "{sent:?}");
        (key, sent[0].id.clone())
    }

    /// Returns the requests that were sent since the last look. Nothing else was.
    fn requests(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent).iter().map(request).collect()
    }

    fn rpc(&mut self, from: &Peer, message: RpcMessage) {
        self.handle(TransportEvent::Rpc { from: Some(from.clone()), message });
    }

    fn ack(&mut self, from: &Peer, id: &str) {
        self.rpc(from, RpcMessage::Ack { id: id.to_owned() });
    }

    fn answer(&mut self, from: &Peer, id: &str, payload: &str) {
        self.rpc(from, RpcMessage::Response(RpcResponse::new(id, Ok(payload.to_owned().into()))));
    }

    fn refuse(&mut self, from: &Peer, id: &str, code: u32, data: &str) {
        let error = RpcError::new(code, "why", data);
        self.rpc(from, RpcMessage::Response(RpcResponse::new(id, Err(error))));
    }

    fn parts(&mut self, from: &Peer, parts: impl IntoIterator<Item = StreamPart>) {
        for part in parts {
            self.handle(TransportEvent::Stream { from: from.clone(), part });
        }
    }

    /// Returns the outcome of a call, if it has one: its value as JSON, or the code of its error and whether it may have run.
    fn outcome(&self, key: CallKey) -> Option<Result<serde_json::Value, (String, bool)>> {
        self.settled.get(&key).map(|outcome| match outcome {
            Ok(value) => Ok(value.to_json()),
            Err(error) => Err((error.code().as_str().to_owned(), error.may_have_run())),
        })
    }

    fn count(&self, counter: Counter) -> u64 {
        self.session.stats().count(counter)
    }

    fn reach(&self) -> Vec<(String, Option<Reach>)> {
        self.session.tools().iter().map(|offer| (offer.tool.name().to_string(), offer.reach)).collect()
    }
}

fn request(packet: &Packet) -> Sent {
    assert_eq!((packet.lane, &packet.to[..]), (Lane::Reliable, &["web".into()][..]));
    match &packet.form {
        Form::Rpc(RpcMessage::Request(it)) => Sent {
            version: it.version,
            id: it.id.clone(),
            method: it.method.clone(),
            payload: String::from_utf8(it.payload.to_vec()).unwrap(),
            timeout_ms: it.timeout_ms,
        },
        Form::Text(stream) => {
            assert_eq!(packet.topic, RPC_REQUEST_TOPIC);
            assert!(packet.stream.is_some(), "others could guess its id");
            let of = |key: &str| stream.attributes[&format!("lk.rpc_request_{key}")].clone();
            Sent {
                version: of("version").parse().unwrap(),
                id: of("id"),
                method: of("method"),
                payload: String::from_utf8(plain(packet, stream).to_vec()).unwrap(),
                timeout_ms: of("response_timeout_ms").parse().unwrap(),
            }
        }
        other => panic!("{other:?}"),
    }
}

fn header(of: &str, length: usize) -> StreamHeader {
    let mut header = StreamHeader::new(format!("s{of}"), RPC_RESPONSE_TOPIC, length as u64);
    header.kind = StreamKind::Text;
    header.attributes.insert("lk.rpc_request_id".to_owned(), of.to_owned());
    header
}

/// An answer of version 2 with its payload in its header.
fn inline(of: &str, payload: &str) -> StreamPart {
    let mut header = header(of, payload.len());
    header.inline = Some(payload.to_owned().into());
    StreamPart::Header(header)
}

/// An answer of version 2 in chunks.
fn chunked(of: &str, payload: &str) -> Vec<StreamPart> {
    let head = header(of, payload.len());
    let mut stream = TextStream::new(payload.len());
    stream.attributes = head.attributes;
    let mut packet = Packet::text("agent".into(), RPC_RESPONSE_TOPIC, payload.to_owned(), stream);
    packet.stream = Some(head.id);
    StreamParts::of(&packet).collect()
}

fn failed(code: &str, may_have_run: bool) -> Option<Result<serde_json::Value, (String, bool)>> {
    Some(Err((code.to_owned(), may_have_run)))
}

#[test]
fn older_app_is_called_in_a_packet_and_sent_nothing_else() {
    let mut caller = Caller::new(config());
    caller.handle(TransportEvent::Joined(app("PA_1", 0)));
    assert_eq!(caller.reach(), [("locate".into(), Some(Reach::Rpc1)), ("paint".into(), Some(Reach::Rpc1))]);
    let key =
        caller.ask(Request::new("paint", Value::from(json!({"on": true}))).timeout(9 * SECOND)).unwrap();
    let sent = caller.requests();
    let [it] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((it.version, &*it.method, &*it.payload, it.timeout_ms), (1, "paint", r#"{"on":true}"#, 9_000));
    assert_eq!(*it.id, *caller.session.call_id(key).unwrap().as_str());
    caller.ack(&web(), &it.id);
    assert!(caller.events.iter().any(|event| matches!(event, Event::Delivered { .. })));
    caller.answer(&web(), &it.id, r#"{"done": 1}"#);
    assert_eq!(caller.outcome(key), Some(Ok(json!({"done": 1}))));
    caller.pass(60 * SECOND);
    assert_eq!(caller.requests(), []);
}

#[test]
fn app_is_called_in_a_stream_once_the_room_has_announced_the_assistant() {
    for is_told in [true, false] {
        let mut caller = Caller::new(config());
        caller.handle(TransportEvent::Joined(app("PA_1", 2)));
        assert_eq!(caller.reach()[0].1, None);
        assert!(matches!(caller.session.readiness(&"web".into()), Readiness::NotYet(_)));
        let long = json!({"text": "x".repeat(1_000)});
        let key = caller.ask(Request::new("paint", Value::from(&long)).timeout(10 * SECOND)).unwrap();
        caller.pass(2 * SECOND);
        assert_eq!(caller.requests(), []);
        match is_told {
            true => caller.handle(TransportEvent::Joined(local("PA_0"))),
            false => caller.pass(1_500 * MS),
        }
        let Form::Text(stream) = &caller.sent[0].form else { panic!("{:?}", caller.sent) };
        assert!(stream.inline);
        assert_eq!(stream.compression == Compression::Deflate, cfg!(feature = "deflate"));
        let sent = caller.requests();
        let left = if is_told { 8_000 } else { 6_500 };
        assert_eq!((sent[0].version, sent[0].timeout_ms, sent.len()), (2, left, 1));
        assert_eq!(sent[0].payload, long.to_string());
        assert_eq!(caller.reach()[0].1, Some(Reach::Rpc2));
        assert!(
            matches!(caller.session.readiness(&"web".into()), Readiness::Ready(tools) if tools.len() == 2)
        );
        caller.parts(&web(), [inline(&sent[0].id, "0.8")]);
        assert_eq!(caller.outcome(key), Some(Ok(json!({"value": 0.8}))));
    }
}

#[test]
fn request_is_in_chunks_for_an_app_that_reads_no_payload_in_headers_and_for_a_long_payload() {
    for (protocol, size, in_header) in [(1, 10_u64, false), (2, 10, true), (2, 1 << 20, false)] {
        let mut caller = Caller::with(config(), protocol);
        let text = (0..size).map(|n| char::from(33 + (n * n % 89) as u8)).collect::<String>();
        let noise = Value::from(json!({"text": text, "random": size}));
        caller.ask(Request::new("paint", noise)).unwrap();
        let Form::Text(stream) = &caller.sent[0].form else { panic!("{:?}", caller.sent) };
        let fits = stream.compression != Compression::None && caller.sent[0].payload.len() <= 14_000;
        assert_eq!(stream.inline, in_header || fits, "{protocol} {size}");
    }
}

#[test]
fn every_form_of_success_counts_with_and_without_an_acknowledgement() {
    for acknowledges in [false, true] {
        for (protocol, form) in [(0, 0), (2, 0), (0, 1), (2, 1), (1, 2), (2, 2)] {
            let mut caller = Caller::with(config(), protocol);
            let (key, id) = caller.sent_call();
            if acknowledges {
                caller.ack(&web(), &id);
            }
            let long = json!({"text": "y".repeat(40_000)}).to_string();
            match form {
                0 => caller.answer(&web(), &id, &long),
                1 => caller.parts(&web(), [inline(&id, &long)]),
                _ => caller.parts(&web(), chunked(&id, &long)),
            }
            let text = caller.outcome(key).unwrap().unwrap()["text"].to_string();
            assert_eq!(text.len(), 40_002);
            assert!(caller.events.iter().any(|event| matches!(event, Event::Delivered { .. })));
            // Once only.
            caller.answer(&web(), &id, "2");
            assert_eq!(caller.count(Counter::Duplicate), 1);
        }
    }
}

#[test]
fn each_code_has_its_outcome() {
    for (code, outcome, may_have_run) in [
        (1400, "unknown_tool", false),
        (1404, "unknown_tool", false),
        (1402, "too_large", false),
        (1502, "timeout", true),
        (1503, "lost", true),
        (1504, "result_too_large", true),
        (1505, "execution_error", true),
        (1500, "execution_error", true),
        (1501, "execution_error", true),
        (7, "execution_error", true),
    ] {
        let mut caller = Caller::with(config(), 0);
        let key = caller.ask(Request::new("locate", Value::empty()).owner_wait(Duration::ZERO)).unwrap();
        let id = caller.requests().remove(0).id;
        caller.refuse(&web(), &id, code, "");
        assert_eq!(caller.outcome(key), failed(outcome, may_have_run), "{code}");
        let error = caller.settled[&key].as_ref().unwrap_err();
        let has_its_reason = match code {
            1400 | 1404 => {
                matches!(error, CallError::UnknownTool { why, .. } if matches!(&**why, NotOffered::Declined { owner } if *owner == "web"))
            }
            // `{}`, and what every version takes.
            1402 => matches!(error, CallError::TooLarge { size: 2, limit: 15_360 }),
            1502 => matches!(error, CallError::Timeout { limit } if *limit == 30 * SECOND),
            1503 => matches!(error, CallError::Lost { owner, .. } if *owner == "web"),
            _ => matches!(error, CallError::Tool(_)),
        };
        assert!(has_its_reason, "{code}: {error:?}");
    }
    let mut caller = Caller::with(config(), 0);
    let (key, id) = caller.sent_call();
    caller.refuse(&web(), &id, 1500, r#"{"left": 2}"#);
    match &caller.settled[&key] {
        Err(CallError::Tool(error)) => {
            assert_eq!((error.message(), error.partial()), ("why", Some(&Value::from(json!({"left": 2})))));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn answer_is_an_object_an_array_or_a_text_unless_the_author_says_that_it_is_json() {
    for is_json in [false, true] {
        let config = if is_json { config() } else { of_texts() };
        let mut caller = Caller::with(config, 2);
        for (payload, as_json) in [
            ("at home", None),
            ("", None),
            ("null", Some(json!(null))),
            ("10115", Some(json!(10115))),
            ("00501", None),
            ("1e5", Some(json!(1e5))),
            ("\"quoted\"", Some(json!("quoted"))),
        ] {
            let (key, id) = caller.sent_call();
            caller.answer(&web(), &id, payload);
            let expected = match as_json {
                _ if !is_json => Some(Ok(json!({"value": payload}))),
                Some(value) => Some(Ok(json!({"value": value}))),
                None => failed("execution_error", true),
            };
            assert_eq!(caller.outcome(key), expected, "{payload}");
        }
        for (payload, value) in [("{\"n\": 1}", json!({"n": 1})), (" [1, \"2\"]", json!({"value": [1, "2"]}))]
        {
            let (key, id) = caller.sent_call();
            caller.answer(&web(), &id, payload);
            assert_eq!(caller.outcome(key), Some(Ok(value)), "{payload}");
        }
        let (key, id) = caller.sent_call();
        let outcome = Ok(Bytes::from_static(b"\xff"));
        caller.rpc(&web(), RpcMessage::Response(RpcResponse::new(&*id, outcome)));
        assert_eq!(caller.outcome(key), failed("execution_error", true));
    }
}

#[test]
fn sec_i12_only_the_owner_that_the_room_announced_may_answer() {
    let mut caller = Caller::with(config(), 2);
    caller.handle(TransportEvent::Joined(Participant::new("other", "PA_2").agent(true)));
    let (key, id) = caller.sent_call();
    // Another participant, and the owner's identity under the sid of another: an agent can sign a header so.
    for from in [Peer::new("other", "PA_2"), Peer::new("web", "PA_2"), Peer::new("web", "")] {
        caller.ack(&from, &id);
        caller.answer(&from, &id, "1");
        caller.refuse(&from, &id, 1400, "");
        caller.parts(&from, [inline(&id, "2")]);
        caller.parts(&from, chunked(&id, "3"));
        assert_eq!(caller.outcome(key), None, "{from}");
    }
    assert!(!caller.events.iter().any(|event| matches!(event, Event::Delivered { .. })));
    assert!(caller.count(Counter::NotPermitted) >= 4);
    // Nobody takes part in the owner's stream.
    let mut parts = chunked(&id, "\"the owner's\"").into_iter();
    caller.parts(&web(), parts.next());
    let forged =
        StreamPart::Chunk { id: format!("s{id}").into(), index: 0, bytes: "\"forged ..... \"".into() };
    caller.parts(&Peer::new("other", "PA_2"), [forged.clone()]);
    caller.parts(&Peer::new("web", "PA_2"), [forged]);
    caller.parts(&web(), parts);
    assert_eq!(caller.outcome(key), Some(Ok(json!({"value": "the owner's"}))));
    assert!(caller.count(Counter::StreamUnknown) > 0);
}

/// An agent can send streams and messages of RPC in the name of another participant, though not under its sid.
#[test]
fn sec_i12_participant_is_named_for_its_own_sid_alone() {
    let mut caller = Caller::with(config(), 2);
    caller.handle(TransportEvent::Joined(Participant::new("other", "PA_2").agent(true)));
    for name in ["web", "nobody", "agent"] {
        let forged = Peer::new(name, "PA_2");
        caller.ack(&forged, "x");
        caller.answer(&forged, "x", "1");
        caller.parts(&forged, chunked("x", "1"));
        let frame = StreamHeader::new("frame", STREAM_TOPIC, Some(8));
        caller.parts(&forged, [StreamPart::Header(frame)]);
    }
    let named = |caller: &Caller| {
        let by = |event: &Event| if let Event::Violation { by, .. } = event { by.clone() } else { None };
        caller.events.iter().filter_map(by).collect::<Vec<_>>()
    };
    assert!(named(&caller).is_empty(), "{:?}", named(&caller));
    assert!(caller.count(Counter::NotPermitted) >= 4 && caller.count(Counter::StreamRefused) >= 2);
    caller.answer(&Peer::new("other", "PA_2"), "x", "1");
    caller.answer(&web(), "x", "1");
    assert_eq!(named(&caller), ["other", "web"].map(Identity::from));
}

#[test]
fn sec_i12_unknown_and_empty_ids_are_counted() {
    let mut caller = Caller::with(config(), 2);
    let (key, _) = caller.sent_call();
    for id in ["", "x", "x.2", &"i".repeat(100_000)] {
        caller.ack(&web(), id);
        caller.answer(&web(), id, "1");
        caller.parts(&web(), chunked(id, "1"));
    }
    assert_eq!((caller.outcome(key), caller.count(Counter::NotPermitted)), (None, 12));
    // Nothing of a sender that is not announced yet is kept for a request that it was not sent.
    let unknown = Peer::new("web", "PA_9");
    caller.ack(&unknown, "x");
    caller.parts(&unknown, chunked("x", "1"));
    assert_eq!(caller.count(Counter::Held), 0);
}

#[test]
fn refusal_of_a_stream_does_not_send_a_request_by_rpc_again() {
    let mut caller = Caller::with(config().rpc_probe(false), 1);
    let key = caller.call("paint", json!({"text": "x".repeat(20_000)}));
    let stream = StreamParts::of(&caller.sent[0]).next().unwrap().id().to_string();
    assert_eq!(caller.requests().len(), 1);
    // It has left, and may run. The refusal belongs to the frames of other peers.
    let refusal = with!(ErrorMessage::default(), code = 504, originating_id = Some(stream));
    let frame = Frame::write(1, "room", &Meta::new(), &Message::Error(refusal)).unwrap();
    caller.handle(TransportEvent::packet(web(), Lane::Reliable, frame));
    caller.pass(10 * SECOND);
    let again: Vec<_> = caller.sent.iter().filter(|it| it.topic == RPC_REQUEST_TOPIC).collect();
    assert!(again.is_empty(), "{again:?}");
    assert_eq!(caller.outcome(key), None);
}

#[test]
fn awaited_answers_of_an_owner_that_rejoins_have_room_beyond_that_for_frames() {
    let mut config = config();
    config.caps.frames.held_frames = 2;
    let mut caller = Caller::with(config, 1);
    let calls: Vec<_> = (0..4).map(|_| caller.sent_call()).collect();
    let again = Peer::new("web", "PA_2");
    for (_, id) in &calls {
        caller.ack(&again, id);
    }
    for (_, id) in &calls {
        caller.answer(&again, id, "1");
    }
    assert!(caller.settled.is_empty());
    caller.handle(TransportEvent::Joined(app("PA_2", 1)));
    assert!(calls.iter().all(|(key, _)| caller.settled[key].is_ok()), "{:?}", caller.settled);
}

#[test]
fn answer_under_a_sid_that_is_announced_late_waits_for_it() {
    let mut caller = Caller::with(config(), 0);
    let (key, id) = caller.sent_call();
    let again = Peer::new("web", "PA_2");
    caller.answer(&again, &id, "1");
    assert_eq!((caller.outcome(key), caller.count(Counter::Held)), (None, 1));
    caller.handle(TransportEvent::Joined(app("PA_2", 0)));
    assert_eq!(caller.outcome(key), Some(Ok(json!({"value": 1}))));
    // The join before is over.
    let (key, id) = caller.sent_call();
    caller.answer(&web(), &id, "1");
    assert_eq!((caller.outcome(key), caller.count(Counter::StaleSid)), (None, 1));
}

#[test]
fn request_that_is_too_large_is_an_error_at_once() {
    let mut caller = Caller::with(config(), 0);
    let text = |size: usize| Value::from(json!({"text": "x".repeat(size)}));
    // `{"text":""}` has 11 bytes.
    caller.ask(Request::new("paint", text(15_360 - 11))).unwrap();
    let error = caller.ask(Request::new("paint", text(15_360 - 10))).unwrap_err();
    assert!(matches!(error, CallError::TooLarge { size: 15_361, limit: 15_360 }), "{error:?}");
    assert_eq!(caller.requests().len(), 1);
    let mut caller = Caller::with(config(), 2);
    let error = caller.ask(Request::new("paint", text(16 << 20))).unwrap_err();
    assert!(matches!(error, CallError::TooLarge { limit: 16_777_216, .. }), "{error:?}");
}

#[test]
fn call_that_ends_by_itself_sends_nothing_and_its_answer_is_late() {
    let mut caller = Caller::with(config().rpc_probe(false), 0);
    let (key, id) = caller.sent_call();
    caller.pass(30 * SECOND);
    assert_eq!(caller.outcome(key), failed("timeout", true));
    let (cancelled, other) = caller.sent_call();
    caller.session.cancel(caller.now, cancelled);
    caller.drain();
    assert_eq!(caller.outcome(cancelled), failed("cancelled", true));
    for id in [&id, &other] {
        caller.answer(&web(), id, "1");
        caller.answer(&web(), id, "1");
    }
    assert_eq!((caller.count(Counter::Late), caller.count(Counter::Duplicate)), (2, 2));
    assert_eq!(caller.requests(), []);
}

#[test]
fn cancelled_calls_keep_their_places_until_they_are_answered_or_their_time_is_up() {
    let mut caller = Caller::with(config().rpc_probe(false), 0);
    let mut ids = Vec::new();
    for _ in 0..64 {
        let (key, id) = caller.sent_call();
        caller.session.cancel(caller.now, key);
        caller.drain();
        ids.push(id);
    }
    let full = |caller: &mut Caller| caller.ask(Request::new("locate", Value::empty())).err();
    assert!(matches!(full(&mut caller), Some(CallError::TooManyOpen { open: 64 })));
    caller.answer(&web(), &ids[0], "1");
    assert!(full(&mut caller).is_none());
    assert!(full(&mut caller).is_some());
    caller.pass(30 * SECOND);
    assert!(full(&mut caller).is_none());
}

#[test]
fn request_that_was_not_sent_is_not_delivered_or_sent_again_under_another_id() {
    let mut caller = Caller::with(config(), 2);
    for (why, code) in [
        (SendFailure::QueueFull, "not_delivered"),
        (SendFailure::Closed, "not_delivered"),
        (SendFailure::Other("no memory".into()), "not_delivered"),
        (SendFailure::TooLarge { size: 2, limit: 1 }, "too_large"),
        (SendFailure::NotAllowed, "not_allowed"),
    ] {
        let mut caller = Caller::with(config(), 2);
        let key = caller.call("locate", json!({}));
        let packet = caller.sent[0].id;
        caller.session.handle_send_failed(caller.now, packet, why);
        caller.drain();
        assert_eq!(caller.outcome(key), failed(code, false));
    }
    // The connection is lost while the stream is sent.
    let key = caller.call("locate", json!({}));
    let packet = caller.sent[0].id;
    let first = caller.requests().remove(0);
    caller.handle(TransportEvent::ConnectionState(ConnectionState::Reconnecting));
    caller.session.handle_send_failed(caller.now, packet, SendFailure::Interrupted);
    caller.session.handle_rejoined(caller.now, local("PA_00"), vec![app("PA_1", 2)]);
    caller.drain();
    assert_eq!(caller.requests(), [], "the room has to announce the assistant again");
    // The app had the header alone, and reports a broken request.
    caller.refuse(&web(), &first.id, 1500, "");
    caller.handle(TransportEvent::Joined(local("PA_00")));
    let again = caller.requests();
    assert_eq!((again.len(), &*again[0].id), (1, &*format!("{}.2", first.id)));
    caller.refuse(&web(), &first.id, 1500, "");
    assert_eq!((caller.outcome(key), caller.count(Counter::Late)), (None, 2));
    for state in [ConnectionState::Reconnecting, ConnectionState::Connected] {
        caller.handle(TransportEvent::ConnectionState(state));
    }
    assert_eq!(caller.requests(), [], "only the first packet was not sent");
    caller.answer(&web(), &again[0].id, "1");
    assert_eq!(caller.outcome(key), Some(Ok(json!({"value": 1}))));
}

#[test]
fn call_goes_on_when_either_end_joins_again() {
    let mut caller = Caller::with(config().rpc_probe(false), 2);
    let (key, id) = caller.sent_call();
    caller.ack(&web(), &id);
    caller.session.handle_rejoined(caller.now, local("PA_00"), vec![app("PA_1", 2)]);
    caller.handle(TransportEvent::Left(web()));
    caller.pass(2 * SECOND);
    caller.handle(TransportEvent::Joined(app("PA_2", 2)));
    caller.pass(20 * SECOND);
    assert_eq!((caller.outcome(key), caller.requests()), (None, vec![]));
    caller.answer(&Peer::new("web", "PA_2"), &id, "1");
    assert_eq!(caller.outcome(key), Some(Ok(json!({"value": 1}))));
    assert_eq!(caller.reach().len(), 2);
}

#[test]
fn call_is_lost_when_the_owner_does_not_return_within_the_grace_period() {
    let mut caller = Caller::with(config(), 2);
    let (key, id) = caller.sent_call();
    caller.handle(TransportEvent::Left(web()));
    caller.pass(4_999 * MS);
    assert_eq!((caller.outcome(key), caller.reach().len()), (None, 2));
    caller.pass(MS);
    assert_eq!((caller.outcome(key), caller.reach().len()), (failed("lost", true), 0));
    caller.answer(&web(), &id, "1");
    // The join is forgotten by now.
    assert_eq!((caller.count(Counter::Held), caller.settled.len()), (1, 1));
}

#[test]
fn leaving_ends_the_call_and_tells_the_app_nothing() {
    let mut caller = Caller::with(config(), 2);
    let (key, _) = caller.sent_call();
    caller.session.close(caller.now);
    caller.drain();
    assert_eq!((caller.outcome(key), caller.requests()), (failed("closed", true), vec![]));
    // Also of a request that waits for the room to announce the assistant.
    let mut caller = Caller::new(config());
    caller.handle(TransportEvent::Joined(app("PA_1", 2)));
    let key = caller.call("locate", json!({}));
    caller.session.close(caller.now);
    caller.drain();
    assert_eq!((caller.outcome(key), caller.requests()), (failed("closed", false), vec![]));
    let error = caller.ask(Request::new("locate", Value::empty())).unwrap_err();
    assert!(matches!(error, CallError::NotInRoom(_)), "{error:?}");
}

#[test]
fn call_without_any_answer_ends_with_its_own_time_limit() {
    let mut caller = Caller::with(config().rpc_probe(false), 2);
    let request = Request::new("locate", Value::empty()).timeout(9 * SECOND);
    let key = caller.ask(request).unwrap();
    caller.pass(8_999 * MS);
    assert_eq!(caller.outcome(key), None);
    caller.pass(MS);
    let error = caller.settled[&key].as_ref().unwrap_err();
    let is_ours = matches!(error, CallError::Timeout { limit } if *limit == 9 * SECOND);
    assert!(is_ours && error.may_have_run(), "{error:?}");
}

/// Returns the times at which pings were sent, in milliseconds.
fn pings(caller: &mut Caller, time: Duration) -> (Vec<u128>, Vec<String>) {
    let began = caller.now;
    let (mut at, mut ids) = (Vec::new(), Vec::new());
    while caller.now < began + time {
        caller.pass(100 * MS);
        for ping in caller.requests() {
            assert_eq!((&*ping.method, ping.version, &*ping.payload), ("toolbridge.ping", 1, ""));
            at.push((caller.now - began).as_millis());
            ids.push(ping.id);
        }
    }
    (at, ids)
}

#[test]
fn owner_that_shows_nothing_is_pinged_three_times_and_lost_after_seven_seconds() {
    for protocol in [0, 2] {
        let mut caller = Caller::with(config(), protocol);
        caller.pass(10 * SECOND);
        assert_eq!(caller.requests(), [], "an idle owner is not pinged");
        let (key, _) = caller.sent_call();
        let (at, _) = pings(&mut caller, 6_900 * MS);
        assert_eq!((at, caller.outcome(key)), (vec![2_500, 4_000, 5_500], None));
        caller.pass(100 * MS);
        assert_eq!(caller.outcome(key), failed("lost", true));
        // The next call is judged by its own time.
        let (key, id) = caller.sent_call();
        let (at, _) = pings(&mut caller, 2_600 * MS);
        assert_eq!((at, caller.outcome(key)), (vec![2_500], None));
        caller.answer(&web(), &id, "1");
        assert_eq!(caller.outcome(key), Some(Ok(json!({"value": 1}))));
    }
}

#[test]
fn anything_that_the_owner_sends_shows_that_it_is_alive() {
    let mut caller = Caller::with(config(), 2);
    let (key, id) = caller.sent_call();
    let (_, ids) = pings(&mut caller, 2_600 * MS);
    caller.ack(&web(), &ids[0]);
    caller.refuse(&web(), &ids[0], 1400, "");
    assert_eq!(caller.count(Counter::NotPermitted), 0);
    let (at, _) = pings(&mut caller, 2_500 * MS);
    assert_eq!(at, [2_500]);
    caller.ack(&web(), &id);
    let (at, _) = pings(&mut caller, 2_600 * MS);
    assert_eq!(at, [2_500]);
    // An answer that no acknowledgement preceded.
    let (_, ids) = pings(&mut caller, 1_500 * MS);
    caller.refuse(&web(), &ids[0], 1400, "");
    let (at, _) = pings(&mut caller, 2_600 * MS);
    assert_eq!(at, [2_500]);
    // Another participant cannot speak for it.
    caller.handle(TransportEvent::Joined(Participant::new("other", "PA_2")));
    caller.ack(&Peer::new("other", "PA_2"), &id);
    caller.ack(&Peer::new("other", "PA_2"), &ids[0]);
    caller.pass(4_400 * MS);
    assert_eq!(caller.outcome(key), failed("lost", true));
}

#[test]
fn pings_pause_in_an_outage_and_can_be_turned_off() {
    let mut caller = Caller::with(config(), 2);
    let (key, _) = caller.sent_call();
    caller.pass(SECOND);
    caller.handle(TransportEvent::ConnectionState(ConnectionState::Reconnecting));
    caller.pass(8 * SECOND);
    caller.handle(TransportEvent::ConnectionState(ConnectionState::Connected));
    let (at, _) = pings(&mut caller, 6_900 * MS);
    assert_eq!((at, caller.outcome(key)), (vec![2_500, 4_000, 5_500], None));
    caller.pass(100 * MS);
    assert_eq!(caller.outcome(key), failed("lost", true));

    let mut caller = Caller::with(config().rpc_probe(false), 2);
    let (key, _) = caller.sent_call();
    let (at, _) = pings(&mut caller, 29 * SECOND);
    assert_eq!((at, caller.outcome(key)), (vec![], None));
    caller.pass(SECOND);
    assert_eq!(caller.outcome(key), failed("timeout", true));
}

#[test]
fn broken_answer_may_have_run() {
    type Parts = fn(&str) -> Vec<StreamPart>;
    let cases: [(&str, Parts); 5] = [
        ("execution_error", |id| {
            let mut parts = chunked(id, &"1".repeat(40_000));
            parts.remove(1);
            parts
        }),
        ("execution_error", |id| {
            let mut parts = chunked(id, "1234");
            parts.remove(1);
            parts
        }),
        ("execution_error", |id| {
            let mut parts = chunked(id, "1234");
            let reason = "the app closes".to_owned();
            parts[2] = StreamPart::Trailer { id: format!("s{id}").into(), reason };
            parts
        }),
        ("execution_error", |id| {
            let mut head = header(id, 4);
            head.compression = Compression::Other;
            head.inline = Some("1234".into());
            vec![StreamPart::Header(head)]
        }),
        ("result_too_large", |id| vec![StreamPart::Header(header(id, (16 << 20) + 1))]),
    ];
    for (code, parts) in cases {
        let mut caller = Caller::with(config(), 2);
        let (key, id) = caller.sent_call();
        caller.parts(&web(), parts(&id));
        assert_eq!(caller.outcome(key), failed(code, true));
    }
    // A compressed answer that would expand to more than it says.
    {
        use std::io::Write;
        let mut deflate = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        deflate.write_all(&vec![b' '; 1 << 20]).unwrap();
        let mut caller = Caller::with(config(), 2);
        let (key, id) = caller.sent_call();
        let mut head = header(&id, 1_000);
        head.compression = Compression::Deflate;
        head.inline = Some(deflate.finish().unwrap().into());
        caller.parts(&web(), [StreamPart::Header(head)]);
        assert_eq!(caller.outcome(key), failed("execution_error", true));
    }
}

#[test]
fn tool_that_the_author_did_not_name_is_not_called() {
    let mut caller = Caller::with(config(), 2);
    for tool in ["dance", "bridge.echo", "bridge.permission"] {
        let error = caller.ask(Request::new(tool, Value::empty()).to("web")).unwrap_err();
        assert!(matches!(error, CallError::UnknownTool { .. }), "{error:?}");
    }
    assert_eq!(caller.requests(), []);
}

#[test]
fn tool_of_an_app_is_chosen_like_that_of_a_client() {
    let mut caller = Caller::new(config().rpc_tool("tablet", tool("locate")));
    caller.handle(TransportEvent::Joined(local("PA_0")));
    let waiting = caller.call("locate", json!({}));
    assert_eq!(caller.requests(), []);
    caller.handle(TransportEvent::Joined(app("PA_1", 2)));
    assert_eq!(caller.requests().len(), 1);
    caller.handle(TransportEvent::Joined(Participant::new("tablet", "PA_2")));
    let error = caller.ask(Request::new("locate", Value::empty())).unwrap_err();
    assert!(matches!(&error, CallError::Ambiguous { owners, .. } if owners.len() == 2), "{error:?}");
    caller.ask(Request::new("locate", Value::empty()).to("web")).unwrap();
    assert_eq!((caller.requests().len(), caller.outcome(waiting)), (1, None));
}

#[test]
fn requests_to_the_assistant_are_refused() {
    // Also those of a participant that a client would serve.
    let mut caller = Caller::with(config().rpc_caller("web"), 2);
    for id in ["r1", "r2"] {
        let message = RpcMessage::Request(RpcRequest::new(id, "locate", "{}", 1_000));
        caller.rpc(&web(), message);
    }
    let forms: Vec<_> = std::mem::take(&mut caller.sent).into_iter().map(|packet| packet.form).collect();
    for (of, two) in ["r1", "r2"].into_iter().zip(forms.chunks(2)) {
        let [Form::Rpc(RpcMessage::Ack { id }), Form::Rpc(RpcMessage::Response(it))] = two else {
            panic!("{forms:?}")
        };
        assert_eq!((&**id, &*it.id, it.outcome.as_ref().unwrap_err().code), (of, of, 1400));
    }
    assert_eq!(forms.len(), 4);
    assert_eq!(caller.count(Counter::Unauthorized), 2);
}

#[test]
fn tools_of_apps_are_checked() {
    let check = |config: Config, own: &[&str]| {
        let mut caller = Caller::new(config);
        caller.session.offer(caller.now, own.iter().map(|name| tool(name)).collect()).unwrap();
        caller.session.check_rpc_tools()
    };
    assert_eq!(check(config(), &["search"]), Ok(()));
    let with = |name: &str| config().rpc_tool("web", tool(name));
    assert!(matches!(check(with("locate"), &[]), Err(RegisterError::Duplicate { .. })));
    assert!(matches!(check(config(), &["locate"]), Err(RegisterError::Duplicate { .. })));
    for name in ["bridge.echo", "lk.chat"] {
        let error = check(with(name), &[]).unwrap_err();
        assert!(
            matches!(error, RegisterError::Reserved { .. }) && error.to_string().contains(name),
            "{error}"
        );
    }
    let method = |method: &str| config().rpc_tool("web", tool("lamp_on").with_rpc_method(method));
    assert_eq!(check(method("lamp/on: all"), &[]), Ok(()));
    for refused in ["", "lk.chat", &"x".repeat(513)] {
        assert!(matches!(check(method(refused), &[]), Err(RegisterError::RpcMethod { .. })), "{refused}");
    }
    let many = (0..129).fold(Config::default(), |config, n| config.rpc_tool("web", tool(&format!("t{n}"))));
    assert!(matches!(check(many, &[]), Err(RegisterError::TooMany { count: 129, limit: 128 })));
}

#[test]
fn local_tool_that_prefers_a_client_runs_if_the_app_has_no_such_method() {
    use toolbridge::{ToolOptions, session::Job};
    let mut caller = Caller::new(config());
    let mut options = ToolOptions::default();
    options.prefer_client = true;
    caller.session.offer(caller.now, vec![tool("locate").options(options)]).unwrap();
    assert_eq!(caller.session.check_rpc_tools(), Ok(()));
    caller.handle(TransportEvent::Joined(local("PA_0")));
    caller.handle(TransportEvent::Joined(app("PA_1", 0)));
    let (key, id) = caller.sent_call();
    let error = RpcError::new(1400, "", "");
    let message = RpcMessage::Response(RpcResponse::new(&*id, Err(error)));
    caller.session.handle_event(caller.now, TransportEvent::Rpc { from: Some(web()), message });
    let mut job: Option<Job> = None;
    while let Some(output) = caller.session.poll_output() {
        if let Output::Execute(it) = output {
            job = Some(it);
        }
    }
    caller.session.settle(caller.now, job.expect("a job").key, Ok(Value::from(json!({"here": 1}))));
    while let Some(output) = caller.session.poll_output() {
        if let Output::Settled { key, result } = output {
            caller.settled.insert(key, result);
        }
    }
    assert_eq!(caller.outcome(key), Some(Ok(json!({"here": 1}))));
}

/// An app that has toolbridge after all.
fn toolbridge_app(caller: &Caller) -> Session {
    let config = Config::default().streams(true).answer_rpc();
    let mut session = Session::client(caller.now, app("PA_1", 2), config, [9; 32]);
    session.offer(caller.now, vec![tool("dance")]).unwrap();
    session.handle_event(caller.now, TransportEvent::Joined(local("PA_0")));
    session
}

/// Passes frames between both until none is left. Returns the tools that ran at the app.
fn exchange(caller: &mut Caller, app: &mut Session) -> Vec<String> {
    let mut ran = Vec::new();
    loop {
        let mut frames = Vec::new();
        while let Some(output) = app.poll_output() {
            match output {
                Output::Transmit(packet) if packet.form == Form::Data => frames.push(packet),
                Output::Execute(job) => {
                    ran.push(job.tool.to_string());
                    app.settle(caller.now, job.key, Ok(Value::from(json!({"by": "frame"}))));
                }
                _ => {}
            }
        }
        let (theirs, others) =
            std::mem::take(&mut caller.sent).into_iter().partition(|it| it.form == Form::Data);
        caller.sent = others;
        let theirs: Vec<Packet> = theirs;
        if frames.is_empty() && theirs.is_empty() {
            return ran;
        }
        for packet in frames {
            caller.handle(TransportEvent::packet(web(), packet.lane, packet.payload));
        }
        for packet in theirs {
            let from = Peer::new("agent", "PA_0");
            app.handle_event(caller.now, TransportEvent::packet(from, packet.lane, packet.payload));
        }
    }
}

#[test]
fn app_that_uses_the_handshake_is_called_by_it() {
    let mut caller = Caller::with(config(), 2);
    let (key, id) = caller.sent_call();
    let mut app = toolbridge_app(&caller);
    assert_eq!(exchange(&mut caller, &mut app), [""; 0], "the call by RPC is not sent again as a frame");
    // It registers its own tools.
    assert_eq!(caller.reach(), [("dance".into(), Some(Reach::Toolbridge))]);
    let dance = caller.call("dance", json!({}));
    assert_eq!(exchange(&mut caller, &mut app), ["dance"]);
    assert_eq!(caller.outcome(dance), Some(Ok(json!({"by": "frame"}))));
    // The call by RPC has its answer by RPC.
    assert_eq!((caller.outcome(key), caller.requests()), (None, vec![]));
    caller.answer(&web(), &id, "1");
    assert_eq!(caller.outcome(key), Some(Ok(json!({"value": 1}))));
    // Also when it comes back, before it has shown its instance again.
    caller.handle(TransportEvent::Left(web()));
    caller.handle(TransportEvent::Joined(Participant::new("web", "PA_2").client_protocol(2)));
    assert!(caller.reach().iter().all(|(name, _)| name == "dance"), "{:?}", caller.reach());
}

#[test]
fn app_that_shows_an_instance_has_no_tools_until_it_registers_them() {
    let mut caller = Caller::with(config(), 2);
    assert_eq!(caller.reach().len(), 2);
    let meta = Meta::new().with_text("bridge.instance", "0123").with_bool("bridge.heard", true);
    let features = Some(vec!["tool_use".to_owned(), "tool_register".to_owned()]);
    let message = Message::Configuration(with!(Configuration::default(), features = features));
    let frame = Frame::write(1, "room", &meta, &message).unwrap();
    caller.handle(TransportEvent::packet(web(), Lane::Reliable, frame));
    assert_eq!(caller.reach(), []);
}

#[test]
fn frame_does_not_answer_a_call_by_rpc_and_none_stops_it() {
    let mut caller = Caller::with(config(), 2);
    let (key, id) = caller.sent_call();
    let mut result = toolbridge::frame::ToolUseResult::new(id.parse().unwrap(), true);
    result.result = Some(Value::from(json!({"forged": 1})));
    let message = Message::ToolUseResult(result);
    let frame = Frame::write(99, "", &Default::default(), &message).unwrap();
    let mut app = toolbridge_app(&caller);
    exchange(&mut caller, &mut app);
    caller.handle(TransportEvent::packet(web(), Lane::Reliable, frame));
    assert_eq!((caller.outcome(key), caller.count(Counter::NotPermitted)), (None, 1));
    std::mem::take(&mut caller.sent);
    caller.session.cancel(caller.now, key);
    caller.drain();
    caller.pass(MS);
    assert_eq!(caller.requests(), []);
}

/// The app acknowledges the header of a stream whose chunks do not leave any more.
#[test]
fn request_whose_stream_ends_after_its_acknowledgement_is_sent_again() {
    let mut caller = Caller::with(config(), 1);
    let key = caller.call("paint", json!({"text": "x".repeat(100_000)}));
    let packet = caller.sent[0].id;
    let first = caller.requests().remove(0);
    caller.ack(&web(), &first.id);
    caller.handle(TransportEvent::ConnectionState(ConnectionState::Reconnecting));
    caller.session.handle_send_failed(caller.now, packet, SendFailure::Interrupted);
    caller.handle(TransportEvent::ConnectionState(ConnectionState::Connected));
    let again = caller.requests();
    assert_eq!((again.len(), &*again[0].id), (1, &*format!("{}.2", first.id)));
    caller.refuse(&web(), &first.id, 1500, "");
    assert_eq!(caller.outcome(key), None, "it is about the stream that has ended");
    caller.answer(&web(), &again[0].id, "1");
    assert_eq!(caller.outcome(key), Some(Ok(json!({"value": 1}))));
    assert_eq!(caller.session.open_calls(), 0);
}

#[test]
fn large_request_is_not_withdrawn_when_either_end_moves() {
    for moves_itself in [true, false] {
        let mut caller = Caller::with(config(), 1);
        let key = caller.call("paint", json!({"text": "x".repeat(100_000)}));
        let packet = caller.sent[0].id;
        if moves_itself {
            caller.session.handle_rejoined(caller.now, local("PA_00"), vec![app("PA_1", 1)]);
        } else {
            caller.handle(TransportEvent::Joined(app("PA_2", 1)));
        }
        caller.drain();
        assert!(caller.session.is_wanted(packet), "nothing would send it again");
        caller.session.cancel(caller.now, key);
        caller.drain();
        assert!(!caller.session.is_wanted(packet));
    }
}

#[test]
fn large_result_of_an_own_tool_is_not_shown_to_an_app_by_name() {
    for size in [10, 40_000] {
        let mut caller = Caller::with(config(), 2);
        caller.session.offer(caller.now, vec![tool("own")]).unwrap();
        caller.drain();
        caller.session.call(caller.now, Request::new("own", Value::from(json!({})))).unwrap();
        while let Some(output) = caller.session.poll_output() {
            match output {
                Output::Execute(job) => {
                    let long = Value::from(json!({"text": "x".repeat(size)}));
                    caller.session.settle(caller.now, job.key, Ok(long));
                }
                Output::Transmit(packet) => assert!(packet.is_broadcast(), "{packet:?}"),
                _ => {}
            }
        }
    }
}

/// An answer by RPC is sent once, so the limits for senders that try again do not apply to it.
#[test]
fn answers_that_arrive_at_the_same_time_have_their_own_limits() {
    for (protocol, calls, size) in [(1, 8, 1), (2, 6, 20_000), (2, 2, 9 << 20)] {
        let mut caller = Caller::with(config().rpc_probe(false), protocol);
        let calls: Vec<_> = (0..calls).map(|_| caller.sent_call()).collect();
        let payload = json!({"v": "z".repeat(size)}).to_string();
        let mut streams: Vec<_> = calls.iter().map(|(_, id)| chunked(id, &payload).into_iter()).collect();
        loop {
            let parts: Vec<_> = streams.iter_mut().filter_map(Iterator::next).collect();
            if parts.is_empty() {
                break;
            }
            caller.parts(&web(), parts);
        }
        for (key, _) in &calls {
            assert!(caller.settled[key].is_ok(), "{size} bytes");
        }
    }
}

/// An app registers its methods after it has joined. 1400 proves that nothing ran, so the call is made again, under another
/// id, as long as a call waits for an owner.
#[test]
fn call_waits_for_a_method_that_the_app_has_not_registered_yet() {
    let mut caller = Caller::with(config(), 2);
    let (key, first) = caller.sent_call();
    caller.ack(&web(), &first);
    caller.refuse(&web(), &first, 1400, "");
    assert_eq!((caller.outcome(key), caller.requests().len()), (None, 0));
    caller.refuse(&web(), &first, 1400, ""); // a repeated answer changes nothing
    caller.pass(600 * MS);
    let again = caller.requests().remove(0).id;
    assert_eq!(again, format!("{first}.2"));
    caller.answer(&web(), &first, "1");
    assert_eq!(caller.outcome(key), None, "the first request was refused");
    caller.answer(&web(), &again, "2");
    assert_eq!(caller.outcome(key), Some(Ok(json!({"value": 2}))));
    let requested = caller.events.iter().filter(|it| matches!(it, Event::Requested { .. })).count();
    assert_eq!(requested, 1);
}

/// After the owner wait the call ends, and a call without one ends at once.
#[test]
fn call_of_a_method_that_the_app_never_registers_ends_with_the_owner_wait() {
    for wait in [0, 3_u32] {
        let mut caller = Caller::with(config(), 2);
        let request = Request::new("locate", Value::empty()).owner_wait(wait * SECOND);
        let key = caller.ask(request).unwrap();
        let mut asked = BTreeSet::new();
        for _ in 0..100 {
            for request in caller.requests() {
                caller.refuse(&web(), &request.id, 1400, "");
                assert!(asked.insert(request.id), "each request has its own id");
            }
            if caller.outcome(key).is_some() {
                break;
            }
            caller.pass(100 * MS);
        }
        assert_eq!(caller.outcome(key), failed("unknown_tool", false));
        assert_eq!(asked.len(), if wait == 0 { 1 } else { 6 });
    }
}

/// The refusal arrives after the interruption: a tool that goes on would start only then.
#[test]
fn interrupted_call_is_not_made_again_when_its_method_was_not_registered() {
    let goes_on =
        tool("locate").options(toolbridge::ToolOptions::default().barge_in(toolbridge::BargeIn::Finish));
    let mut caller = Caller::with(Config::default().rpc_tool("web", goes_on), 2);
    let turn = caller.session.turn();
    let key = caller.ask(Request::new("locate", Value::empty()).turn(turn)).unwrap();
    let first = caller.requests().remove(0).id;
    caller.session.barge_in(caller.now, turn);
    caller.drain();
    assert!(caller.outcome(key).is_some());
    caller.refuse(&web(), &first, 1400, "");
    caller.pass(10 * SECOND);
    assert_eq!(caller.requests().len(), 0);
}

/// A barge-in, a cancel and a lack of time end a call that waits for a method. Nothing has run.
#[test]
fn call_that_waits_for_a_method_can_be_cancelled() {
    let mut caller = Caller::with(config(), 2);
    let (key, id) = caller.sent_call();
    caller.refuse(&web(), &id, 1400, "");
    caller.session.cancel(caller.now, key);
    caller.drain();
    assert!(caller.outcome(key).is_some());
    caller.pass(10 * SECOND);
    assert!(caller.requests().is_empty());
}

/// A request that is sent again states the time that is left, not the whole limit.
#[test]
fn request_that_is_sent_again_has_the_time_that_is_left() {
    let mut caller = Caller::with(config(), 2);
    let key = caller.ask(Request::new("locate", Value::empty()).timeout(20 * SECOND)).unwrap();
    let first = caller.requests().remove(0);
    assert_eq!(first.timeout_ms, 20_000);
    caller.pass(2 * SECOND);
    caller.refuse(&web(), &first.id, 1400, "");
    caller.pass(SECOND);
    assert_eq!(caller.requests().remove(0).timeout_ms, 17_500);
    assert_eq!(caller.outcome(key), None);
}

#[test]
fn request_waits_for_the_announcement_of_the_last_rejoin() {
    let mut caller = Caller::with(config(), 2);
    for sid in ["PA_01", "PA_02"] {
        caller.session.handle_rejoined(caller.now, local(sid), vec![app("PA_1", 2)]);
        caller.drain();
        caller.pass(2 * SECOND);
    }
    caller.call("locate", json!({}));
    caller.pass(1_400 * MS);
    assert_eq!(caller.requests(), []);
    caller.pass(200 * MS);
    assert_eq!(caller.requests().len(), 1);
}
