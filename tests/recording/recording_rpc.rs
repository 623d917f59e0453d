//! Calls by LiveKit's RPC in recordings: recorded, read, redacted, checked and run again.

use std::{path::Path, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use toolbridge::{
    Client, ToolError, ToolOptions,
    frame::Frame,
    memory::{MemoryRoom, MemoryTransport},
    recording::{
        Checked, Direction, Entry, Happened, Level, RecordedOutcome, Recorder, RecorderOptions, Recording,
        Redact, calls, check, entry_json, entry_text, info, redact,
    },
    replay::Replay,
    tools::Visibility,
    transport::{
        Capabilities, Packet, Participant, Peer, RPC_REQUEST_TOPIC, RpcError, RpcMessage, RpcRequest,
        RpcResponse, SendError, Sid, StreamHeader, StreamKind, StreamPart, TextStream, Transport,
        TransportEvent,
    },
};

use crate::{
    folder::Folder,
    recording_said::{closed, here, joined, left, raw},
};

#[derive(Deserialize, schemars::JsonSchema)]
struct Text {
    text: String,
}

async fn echo(text: Text) -> Result<String, ToolError> {
    Ok(text.text)
}

async fn battery() -> Result<Value, ToolError> {
    Ok(json!({"level": 0.8, "apiKey": "hunter2"}))
}

async fn fail() -> Result<(), ToolError> {
    Err(ToolError::new("out_of_range", "the watch is out of range"))
}

async fn diary() -> Result<Value, ToolError> {
    Ok(json!({"entry": "dear diary"}))
}

async fn slow() -> Result<u32, ToolError> {
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(3)
}

/// Sends a request as a stream of text.
async fn stream(agent: &MemoryTransport, id: &str, method: &str, payload: String) {
    let mut stream = TextStream::new(payload.len());
    stream.attributes = [("id", id), ("method", method), ("response_timeout_ms", "5000"), ("version", "2")]
        .into_iter()
        .map(|(key, value)| (format!("lk.rpc_request_{key}"), value.to_owned()))
        .collect();
    agent.send(Packet::text("phone".into(), RPC_REQUEST_TOPIC, payload, stream)).await.unwrap();
}

async fn packet(agent: &MemoryTransport, id: &str, method: &str, payload: &str) {
    let request = RpcRequest::new(id, method, payload.to_owned(), 5_000);
    agent.send(Packet::rpc("phone".into(), RpcMessage::Request(request))).await.unwrap();
}

/// Waits for the answer to this request.
async fn answered(agent: &mut MemoryTransport, id: &str) {
    let mut open = None;
    loop {
        match agent.recv().await.unwrap() {
            TransportEvent::Rpc { message: RpcMessage::Response(it), .. } if it.id == id => return,
            TransportEvent::Stream { part: StreamPart::Header(header), .. }
                if header.attributes.get("lk.rpc_request_id").is_some_and(|it| it == id) =>
            {
                open = Some(header.id);
            }
            TransportEvent::Stream { part: StreamPart::Trailer { id, .. }, .. }
                if open == Some(id.clone()) =>
            {
                return;
            }
            _ => {}
        }
    }
}

/// Records a client that is called in many ways.
async fn record(path: &Path) {
    let room = MemoryRoom::new();
    let builder = Client::builder()
        .tool("battery", "", battery)
        .tool("echo", "", echo)
        .tool("fail", "", fail)
        .tool("slow", "", slow)
        .tool("diary", "", ToolOptions::default().disclose(Visibility::Name).on(diary))
        .answer_rpc()
        .rpc_caller("service")
        .record(path);
    let phone = builder.join_over(room.client("phone")).await.unwrap();
    let (mut agent, mut stranger) = (room.assistant("agent"), room.client("stranger"));
    let mut service = room.client("service");
    packet(&agent, "one", "battery", "").await;
    answered(&mut agent, "one").await;
    packet(&agent, "two", "echo", r#"{"text": "hi", "password": "hunter2"}"#).await;
    answered(&mut agent, "two").await;
    packet(&agent, "one", "battery", "").await; // again
    answered(&mut agent, "one").await;
    packet(&agent, "one", "echo", r#"{"text": "other"}"#).await; // another one
    answered(&mut agent, "one").await;
    for (id, method, payload) in [
        ("three", "fail", "{}"),
        ("four", "fly", "{}"),
        ("five", "echo", "{\"text\": "),
        ("six", "echo", r#"{"n": 1}"#),
        ("seven", "diary", r#"{"day": "monday"}"#),
    ] {
        packet(&agent, id, method, payload).await;
        answered(&mut agent, id).await;
    }
    stream(&agent, "eight", "echo", json!({"text": "x".repeat(100)}).to_string()).await;
    answered(&mut agent, "eight").await;
    stream(&agent, "nine", "echo", json!({"text": "y".repeat(40_000)}).to_string()).await;
    answered(&mut agent, "nine").await;
    stream(&agent, "ten", "slow", String::new()).await;
    answered(&mut agent, "ten").await;
    packet(&stranger, "one", "battery", "").await;
    answered(&mut stranger, "one").await;
    packet(&stranger, "two", "battery", "").await; // gets no answer
    packet(&service, "one", "battery", "").await;
    answered(&mut service, "one").await;
    for mut it in [stranger, service, agent] {
        it.close().await;
    }
    phone.close().await;
}

fn entries(path: &Path) -> Vec<Entry> {
    let mut entries = Recording::open(path).unwrap().entries();
    let read = entries.by_ref().collect();
    assert_eq!((entries.damage(), entries.foreign()), (None, 0));
    read
}

fn is_rpc(entry: &Entry) -> bool {
    matches!(&entry.what, Happened::Packet(packet) if packet.topic == "lk.rpc")
}

#[tokio::test(start_paused = true)]
async fn client_called_by_rpc_is_recorded_read_and_replayed() {
    let folder = Folder::new();
    let path = folder.file("rpc.mcap");
    record(&path).await;
    let all = entries(&path);
    let found = calls(all.clone()).calls;
    let by = |id: &str, caller: &str| {
        let call = found.iter().find(|it| it.id.as_str() == id && it.caller.as_ref().unwrap() == caller);
        call.unwrap_or_else(|| panic!("{id} of {caller}: {found:#?}"))
    };
    assert_eq!(found.len(), 13, "{found:#?}");
    for (id, caller, version, tool, outcome) in [
        ("one", "agent", 1, "battery", "ok"),
        ("two", "agent", 1, "echo", "ok"),
        ("three", "agent", 1, "fail", "out_of_range"),
        ("four", "agent", 1, "fly", "unknown_tool"),
        ("five", "agent", 1, "echo", "invalid_parameters"),
        ("six", "agent", 1, "echo", "invalid_parameters"),
        ("seven", "agent", 1, "diary", "ok"),
        ("eight", "agent", 2, "echo", "ok"),
        ("nine", "agent", 2, "echo", "ok"),
        ("ten", "agent", 2, "slow", "ok"),
        ("one", "stranger", 1, "battery", "permission_denied"),
        ("two", "stranger", 1, "battery", "permission_denied"),
        ("one", "service", 1, "battery", "ok"),
    ] {
        let call = by(id, caller);
        assert_eq!(
            (call.rpc, &*call.tool, call.outcome.as_str(), call.owner.as_ref().unwrap().as_str()),
            (Some(version), tool, outcome, "phone"),
            "{call:#?}"
        );
        assert_eq!(call.limit, Some(Duration::from_secs(5)));
        assert_eq!(call.delivered.is_some(), outcome != "open", "{call:#?}");
        assert!(call.delivered.is_none_or(|it| it >= call.requested.unwrap()));
    }
    // The one fault is the caller's.
    let broken: Vec<_> = check(all.clone()).findings.into_iter().map(|it| (it.rule, it.who)).collect();
    assert_eq!(broken, [("request-changed".to_owned(), Some("agent".into()))]);
    let info = info(all.clone());
    assert_eq!((info.frames["RpcRequest"], info.frames["RpcAck"], info.frames["RpcResponse"]), (15, 15, 15));
    assert!(!all.iter().any(|it| is_rpc(it) && entry_text(it, None).contains("malformed")));
    let report = Replay::dry(all).unwrap();
    assert!(report.is_same(), "{report}");
    assert!(report.compared >= 28, "{report}");
}

#[tokio::test(start_paused = true)]
async fn replay_shows_an_answer_by_rpc_that_was_changed() {
    let folder = Folder::new();
    let path = folder.file("rpc.mcap");
    record(&path).await;
    let all = entries(&path);
    // An acknowledgement is missing.
    let is_ack = |entry: &Entry| is_rpc(entry) && entry_text(entry, None).contains("RpcAck");
    let mut without = all.clone();
    without.remove(all.iter().position(is_ack).unwrap());
    let report = Replay::dry(without).unwrap();
    assert_eq!(report.differences.len(), 1, "{report}");
    // A refusal names another code.
    let mut changed = all;
    for entry in &mut changed {
        if let Happened::Packet(packet) = &mut entry.what
            && entry_text(&Entry::new(entry.at, Happened::Packet(packet.clone())), None)
                .contains("four unknown")
        {
            let mut json = Frame::decode(packet.payload.clone()).unwrap().to_json().unwrap();
            json["body"]["errorMessage"] = "method \"fly\" is missing".into();
            packet.payload = Frame::from_json(&json.to_string()).unwrap().into_bytes();
        }
    }
    let report = Replay::dry(changed).unwrap();
    let found = &report.differences;
    assert_eq!(
        (found.len(), &*found[0].field, &*found[0].expected),
        (1, "body.errorMessage", "method \"fly\" is missing"),
        "{report}"
    );
}

#[tokio::test(start_paused = true)]
async fn sec_p3_secrets_of_calls_by_rpc_are_redacted() {
    let folder = Folder::new();
    let (path, copy) = (folder.file("rpc.mcap"), folder.file("copy.mcap"));
    record(&path).await;
    let bytes: Vec<_> = entries(&path)
        .into_iter()
        .filter_map(|entry| match entry.what {
            Happened::Packet(packet) => Some(packet.payload),
            _ => None,
        })
        .collect();
    let has = |text: &str| bytes.iter().any(|it| it.windows(text.len()).any(|it| it == text.as_bytes()));
    assert!(has("password") && has("level"), "the frames are there");
    for secret in ["hunter2", "monday", "dear diary"] {
        assert!(!has(secret), "{secret}");
    }
    // A copy has no data of any tool.
    redact(&path, &copy, Redact::everything(), false).unwrap();
    let reduced = entries(&copy);
    let texts: Vec<String> =
        reduced.iter().enumerate().map(|(n, it)| entry_json(n, it).to_string()).collect();
    for secret in ["hi\"", "xxxx", "yyyy", "level", "out of range"] {
        assert!(!texts.iter().any(|it| it.contains(secret)), "{secret}");
    }
    let (before, after) = (calls(entries(&path)).calls, calls(reduced.clone()).calls);
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_eq!((&before.id, &before.tool, before.rpc), (&after.id, &after.tool, after.rpc));
        // What was redacted before counts with the size of its placeholder.
        if !["battery", "echo"].contains(&&*before.tool) {
            assert_eq!((before.parameters, before.result), (after.parameters, after.result), "{before:?}");
        }
        let is_own = before.outcome.as_str() == "out_of_range"; // a tool's own code is its data
        assert!(is_own || before.outcome.as_str() == after.outcome.as_str());
    }
    let report = Replay::dry(reduced).unwrap();
    assert!(report.is_same(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn pings_and_their_answers_are_not_recorded() {
    let folder = Folder::new();
    let path = folder.file("ping.mcap");
    let room = MemoryRoom::new();
    let recorder = Recorder::create(&path, RecorderOptions::default()).unwrap();
    let (mut agent, web) = (recorder.tap(room.assistant("agent")), room.client("web"));
    for (id, method) in [("p1", "toolbridge.ping"), ("c1", "locate")] {
        let request = RpcRequest::new(id, method, "", 1_000);
        agent.send(Packet::rpc("web".into(), RpcMessage::Request(request))).await.unwrap();
        let unknown = RpcResponse::new(id, Err(RpcError::new(1400, "", "")));
        for answer in [RpcMessage::Ack { id: id.to_owned() }, RpcMessage::Response(unknown)] {
            web.send(Packet::rpc("agent".into(), answer)).await.unwrap();
            while !matches!(agent.recv().await, Some(TransportEvent::Rpc { .. })) {}
        }
    }
    agent.close().await;
    drop(agent);
    recorder.finish().unwrap();
    let all = entries(&path);
    assert_eq!(all.iter().filter(|it| is_rpc(it)).count(), 3);
    let found: Vec<_> = calls(all).calls.into_iter().map(|it| (it.tool, it.rpc)).collect();
    assert_eq!(found, [("locate".to_owned(), Some(1))]);
}

/// A message of RPC in a recording of `phone`.
fn rpc(ms: u64, direction: Direction, peer: &str, json: &str) -> Entry {
    let frame = Frame::from_json(json).unwrap().into_bytes().to_vec();
    let mut entry = match direction {
        Direction::Heard => raw(ms, direction, peer, &[], frame),
        Direction::Sent => raw(ms, direction, "phone", &[peer], frame),
    };
    let Happened::Packet(packet) = &mut entry.what else { unreachable!() };
    packet.topic = "lk.rpc".to_owned();
    entry
}

fn heard(ms: u64, from: &str, json: &str) -> Entry {
    rpc(ms, Direction::Heard, from, json)
}

fn sent(ms: u64, to: &str, json: &str) -> Entry {
    rpc(ms, Direction::Sent, to, json)
}

fn request(id: &str, n: u32) -> String {
    json!({"type": 6, "meta": {"rpc.version": 1}, "body": {"id": id, "toolName": "t", "parameters": {"n": n},
        "execution": "client", "timeoutMs": 1000}})
    .to_string()
}

fn ack(id: &str) -> String {
    json!({"type": 8, "meta": {}, "body": {"acknowledgedMessageId": id}}).to_string()
}

fn ok(id: &str, n: u32) -> String {
    json!({"type": 7, "meta": {}, "body": {"id": id, "success": true, "result": {"n": n}}}).to_string()
}

fn refused(id: &str, code: &str) -> String {
    json!({"type": 7, "meta": {"rpc.code": 1500},
        "body": {"id": id, "success": false, "errorCode": code, "errorMessage": "no"}})
    .to_string()
}

/// The rules that these entries of a phone break, with their levels.
fn broken(entries: Vec<Entry>) -> Vec<(String, Level)> {
    let head = [here(0, "phone"), joined(1, "agent", Some("assistant"))];
    let found = check(head.into_iter().chain(entries).chain([closed(60_000)])).findings;
    found.into_iter().map(|it| (it.rule, it.level)).collect()
}

fn errors(rules: &[&str]) -> Vec<(String, Level)> {
    rules.iter().map(|rule| ((*rule).to_owned(), Level::Error)).collect()
}

#[test]
fn rules_for_calls_by_rpc_are_checked() {
    let [a, b] = ["agent", "other"];
    // An ordinary call, and one that is repeated and gets the same answer.
    let call = vec![heard(10, a, &request("1", 1)), sent(11, a, &ack("1")), sent(12, a, &ok("1", 1))];
    let again = [heard(13, a, &request("1", 1)), sent(14, a, &ack("1")), sent(15, a, &ok("1", 1))];
    assert_eq!(broken([call.clone(), again.to_vec()].concat()), []);
    // The end of a stream follows its acknowledgement.
    assert_eq!(broken(vec![sent(9, a, &ack("1")), call[0].clone(), call[2].clone()]), []);
    // An answer without a request.
    assert_eq!(broken(vec![sent(12, a, &ok("1", 1))]), errors(&["no-request"]));
    assert_eq!(broken(vec![heard(12, a, &ok("1", 1))]), errors(&["no-request"]));
    // The request may follow.
    assert_eq!(broken(vec![sent(9, a, &ack("1")), sent(9, a, &refused("1", "busy")), call[0].clone()]), []);
    // Two answers that differ.
    let two = [call.clone(), vec![sent(13, a, &ok("1", 2))]].concat();
    assert_eq!(broken(two), errors(&["two-results"]));
    // Again, and it ran again.
    let ran = [call.clone(), vec![again[0].clone(), sent(15, a, &ok("1", 2))]].concat();
    assert_eq!(broken(ran), errors(&["ran-twice"]));
    // Another request with the id is refused.
    let other = vec![heard(13, a, &request("1", 7)), sent(14, a, &refused("1", "execution_error"))];
    assert_eq!(broken([call.clone(), other].concat()), errors(&["request-changed"]));
    // A refused request has not run, and may run later.
    let later = [vec![call[0].clone(), sent(11, a, &refused("1", "busy"))], call[..].to_vec()].concat();
    assert_eq!(broken(later), []);
    // Without an acknowledgement nobody owes an answer.
    assert_eq!(broken(vec![call[0].clone()]), []);
    assert_eq!(broken(vec![call[0].clone(), call[1].clone()]), errors(&["timeout-not-honoured"]));
    // As caller: an answer of another participant than the one that was asked.
    let asked = vec![joined(2, b, None), sent(10, a, &request("1", 1)), heard(11, a, &ack("1"))];
    let forged = [asked.clone(), vec![heard(12, b, &ok("1", 2)), heard(13, a, &ok("1", 1))]].concat();
    assert_eq!(broken(forged.clone()), errors(&["wrong-sender"]));
    let call = &calls([vec![here(0, "phone")], forged].concat()).calls[0];
    assert_eq!((call.owner.as_ref().unwrap().as_str(), &call.outcome), (a, &RecordedOutcome::Ok));
    // An SDK does not enforce the limit.
    assert_eq!(broken(asked.clone()), [("timeout-not-honoured".to_owned(), Level::Note)]);
    assert_eq!(broken([asked, vec![left(14, a)]].concat()), []);
}

#[test]
fn same_id_in_another_join_is_another_request() {
    let of = |sid: &str, mut entry: Entry| {
        let Happened::Packet(packet) = &mut entry.what else { unreachable!() };
        packet.from = Some(Peer::new("agent", Sid::from(sid)));
        entry
    };
    let call = |sid: &str, ms: u64, n: u32| {
        [
            of(sid, heard(ms, "agent", &request("1", 1))),
            sent(ms + 1, "agent", &ack("1")),
            sent(ms + 2, "agent", &ok("1", n)),
        ]
    };
    let rejoin = vec![left(20, "agent"), joined(21, "agent", Some("assistant"))];
    assert_eq!(broken([call("PA_agent", 10, 1).to_vec(), rejoin, call("PA_2", 30, 2).to_vec()].concat()), []);
}

#[test]
fn record_that_is_none_of_rpc_is_malformed_everywhere() {
    let deep = json!({"type": 7, "body": {"id": "a", "success": true, "result": {"a": [[[[1]]]]}}});
    let mut files = Vec::new();
    for (json, why) in [
        (json!({"type": 72, "body": {}}), "type 6, 7 or 8"),
        (
            json!({"type": 70, "body": {"tools": [{"name": "t", "description": "", "inputSchema": {}}]}}),
            "type 6, 7 or 8",
        ),
        (json!({"type": 6, "body": {"id": 7, "toolName": "t"}}), "`id`"),
        (json!({"type": 7, "body": {"id": "a", "success": "yes"}}), "`success`"),
        (json!({"type": 8, "body": {"acknowledgedStanzaId": 1, "success": true}}), "`acknowledgedMessageId`"),
    ] {
        files.push((heard(10, "agent", &json.to_string()), why));
    }
    let bytes = |bytes: Vec<u8>| {
        let mut entry = heard(10, "agent", &deep.to_string());
        let Happened::Packet(packet) = &mut entry.what else { unreachable!() };
        packet.payload = bytes.into();
        entry
    };
    files.push((bytes(vec![0x91; 70]), "nesting depth"));
    files.push((bytes(vec![0xc1]), "0xc1"));
    files.push((bytes(vec![0; 16 * 1024 * 1024 + 1]), "exceed the limit"));
    for (entry, why) in files {
        let all = vec![here(0, "phone"), joined(1, "agent", Some("assistant")), entry.clone()];
        let found = check(all.clone()).findings;
        assert_eq!((found.len(), &*found[0].rule, found[0].level), (1, "malformed", Level::Error), "{why}");
        assert!(found[0].text.contains(why), "{}", found[0].text);
        assert_eq!((calls(all.clone()).calls.len(), info(all.clone()).malformed), (0, 1));
        assert!(entry_text(&entry, None).contains("malformed"));
        assert!(entry_json(0, &entry)["refused"].as_str().unwrap().contains(why));
        assert!(Replay::dry(all).is_ok());
    }
}

/// A transport that also receives what a test gives it.
struct Fed {
    inner: MemoryTransport,
    more: mpsc::UnboundedReceiver<TransportEvent>,
}

impl Transport for Fed {
    fn local(&self) -> Participant {
        self.inner.local()
    }

    fn room(&self) -> String {
        self.inner.room()
    }

    fn present(&self) -> Vec<Participant> {
        self.inner.present()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        self.inner.send(packet)
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        tokio::select! {
            biased;
            Some(event) = self.more.recv() => Some(event),
            event = self.inner.recv() => event,
        }
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn broken_streams_of_rpc_are_recorded_and_replayed() {
    let folder = Folder::new();
    let path = folder.file("rpc.mcap");
    let room = MemoryRoom::new();
    let builder = Client::builder().tool("echo", "", echo).answer_rpc().record(&path);
    let (parts, more) = mpsc::unbounded_channel();
    let phone = builder.join_over(Fed { inner: room.client("phone"), more }).await.unwrap();
    let mut agent = room.assistant("agent");
    stream(&agent, "whole", "echo", json!({"text": "x"}).to_string()).await;
    answered(&mut agent, "whole").await;
    let header = |id: &str, length: u64| {
        let mut header = StreamHeader::new(format!("s-{id}"), RPC_REQUEST_TOPIC, length);
        header.kind = StreamKind::Text;
        for (key, value) in
            [("id", id), ("method", "echo"), ("response_timeout_ms", "5000"), ("version", "2")]
        {
            header.attributes.insert(format!("lk.rpc_request_{key}"), value.to_owned());
        }
        StreamPart::Header(header)
    };
    let chunk =
        |id: &str, index: u64| StreamPart::Chunk { id: format!("s-{id}").into(), index, bytes: "x".into() };
    let end = |id: &str, reason: &str| StreamPart::Trailer {
        id: format!("s-{id}").into(),
        reason: reason.to_owned(),
    };
    let from = agent.local().peer().clone();
    for part in [
        header("gap", 30),
        chunk("gap", 1),
        header("short", 30),
        chunk("short", 0),
        end("short", ""),
        header("abandoned", 30),
        chunk("abandoned", 0),
        end("abandoned", "abandoned"),
        header("large", 1 << 30),
        header("unfinished", 30),
    ] {
        parts.send(TransportEvent::Stream { from: from.clone(), part }).unwrap();
    }
    answered(&mut agent, "short").await;
    stream(&agent, "last", "echo", json!({"text": "x"}).to_string()).await;
    answered(&mut agent, "last").await;
    agent.close().await;
    let mut other = room.assistant("other");
    packet(&other, "other", "echo", "{}").await;
    answered(&mut other, "other").await;
    phone.close().await;
    let all = entries(&path);
    let faults: Vec<String> = all
        .iter()
        .enumerate()
        .filter_map(|(n, it)| entry_json(n, it)["frame"]["meta"]["rpc.fault"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(faults, ["incomplete", "invalid", "abandoned", "too_large", "abandoned"]);
    assert_eq!(check(all.clone()), Checked::default());
    let report = Replay::dry(all).unwrap();
    assert!(report.is_same(), "{report}");
}
