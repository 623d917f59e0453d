//! Recordings of calls by LiveKit's RPC, of a client and of an assistant: what they hold, and that the verbs read it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value as Json, json};
use toolbridge::{
    Assistant, CallError, Client, Tool, ToolError, Value,
    memory::{MemoryRoom, MemoryTransport},
    recording::{Happened, RecordedOutcome, Recording, RoomEvent, calls, check, entry_json},
    transport::{
        Packet, RPC_REQUEST_TOPIC, RpcError, RpcMessage, RpcRequest, RpcResponse, TextStream, Transport as _,
        TransportEvent,
    },
};

use crate::cli::run;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Door {
    door: Option<String>,
    #[expect(dead_code, reason = "only its name matters")]
    password: Option<String>,
}

async fn unlock(Door { door, .. }: Door) -> Result<Value, ToolError> {
    match door.as_deref() {
        Some("front") => Ok(Value::from(json!({"open": true, "token": "hunter3"}))),
        _ => Err(ToolError::new("no_such_door", "there is no such door")),
    }
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("toolbridge-rpc-{name}-{}.mcap", std::process::id()))
}

async fn next(transport: &mut MemoryTransport) -> RpcMessage {
    loop {
        if let TransportEvent::Rpc { message, .. } = transport.recv().await.unwrap() {
            return message;
        }
    }
}

/// Returns tool, caller, owner and outcome of the calls in a recording.
fn told(path: &Path) -> Vec<(String, String, String, String)> {
    let entries = Recording::open(path).unwrap().entries();
    let name = |it: Option<&toolbridge::Identity>| it.map_or(String::new(), ToString::to_string);
    let calls = calls(entries).calls;
    calls
        .iter()
        .map(|call| {
            let outcome = match &call.outcome {
                RecordedOutcome::Failed { code, .. } => code.as_str().to_owned(),
                other => other.as_str().to_owned(),
            };
            (call.tool.clone(), name(call.caller.as_ref()), name(call.owner.as_ref()), outcome)
        })
        .collect()
}

/// Returns the frames that stand for RPC, as JSON.
fn frames(path: &Path) -> Vec<Json> {
    let entries = Recording::open(path).unwrap().entries();
    let is_rpc = |what: &Happened| matches!(what, Happened::Packet(it) if it.topic == "lk.rpc");
    entries.filter(|entry| is_rpc(&entry.what)).map(|entry| entry_json(0, &entry)).collect()
}

fn call(tool: &str, caller: &str, owner: &str, outcome: &str) -> (String, String, String, String) {
    (tool.to_owned(), caller.to_owned(), owner.to_owned(), outcome.to_owned())
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_client_are_recorded_in_both_versions() {
    let path = file("client");
    let room = MemoryRoom::new();
    let builder = Client::builder().tool("unlock", "", unlock).answer_rpc().record(&path);
    let phone = builder.join_over(room.client("phone")).await.unwrap();
    let mut agent = room.assistant("agent");
    let secret = r#"{"door": "front", "password": "hunter2"}"#;
    for (id, method, payload) in
        [("r1", "unlock", secret), ("r2", "unlock", "{}"), ("r3", "fly", "{}"), ("r4", "unlock", "[1")]
    {
        let request = RpcRequest::new(id, method, payload.to_owned(), 5_000);
        agent.send(Packet::rpc("phone".into(), RpcMessage::Request(request))).await.unwrap();
        assert_eq!(next(&mut agent).await, RpcMessage::Ack { id: id.to_owned() });
        assert!(matches!(next(&mut agent).await, RpcMessage::Response(it) if it.id == id));
    }
    let mut stream = TextStream::new(secret.len());
    for (key, value) in
        [("id", "r5"), ("method", "unlock"), ("response_timeout_ms", "5000"), ("version", "2")]
    {
        stream.attributes.insert(format!("lk.rpc_request_{key}"), value.to_owned());
    }
    agent.send(Packet::text("phone".into(), RPC_REQUEST_TOPIC, secret, stream)).await.unwrap();
    assert_eq!(next(&mut agent).await, RpcMessage::Ack { id: "r5".to_owned() });
    // Its answer is a stream of text.
    while !matches!(
        agent.recv().await,
        Some(TransportEvent::Stream { part: toolbridge::transport::StreamPart::Trailer { .. }, .. })
    ) {}
    phone.close().await;
    assert_eq!(
        told(&path),
        [
            call("unlock", "agent", "phone", "ok"),
            call("unlock", "agent", "phone", "no_such_door"),
            call("fly", "agent", "phone", "unknown_tool"),
            call("unlock", "agent", "phone", "invalid_parameters"),
            call("unlock", "agent", "phone", "ok"),
        ]
    );
    let frames = frames(&path);
    assert_eq!(frames.len(), 15, "a request, an acknowledgement and an answer of each: {frames:#?}");
    let all = serde_json::to_string(&frames).unwrap();
    assert!(all.contains("front") && !all.contains("hunter"), "secrets are redacted: {all}");
    assert_eq!(frames[0]["frame"]["meta"]["rpc.version"], 1);
    // The header of a stream is acknowledged before its end.
    assert_eq!(frames[13]["frame"]["meta"]["rpc.version"], 2);
    assert_eq!(frames[0]["frame"]["body"]["timeoutMs"], 5_000);
    assert_eq!(frames[5]["frame"]["meta"]["rpc.code"], 1500);
    let checked = check(Recording::open(&path).unwrap().entries());
    assert_eq!(checked.errors, 0, "{:?}", checked.findings);
    let shown = path.to_str().unwrap();
    for verb in
        [&["info", shown][..], &["calls", shown], &["check", shown], &["cat", shown], &["replay", shown]]
    {
        let output = run(verb);
        assert_eq!(output.status.code(), Some(0), "{verb:?}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let shows_versions = text.contains("rpc v1") && text.contains("rpc v2");
        assert_eq!(verb[0] == "calls", shows_versions, "{text}");
    }
    let page = path.with_extension("html");
    let output = run(&["report", shown, "--output", page.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("RPC (version 1)") && html.contains("RPC (version 2)"));
    std::fs::remove_file(page).unwrap();
    std::fs::remove_file(path).unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_of_an_assistant_are_recorded_as_their_caller_read_them() {
    let path = file("assistant");
    let room = MemoryRoom::new();
    let tool = |name: &str| Tool::new(name.parse().unwrap(), "");
    let builder = Assistant::builder().rpc_tool("web", tool("locate")).rpc_tool("web", tool("hang"));
    let assistant = builder.record(&path).join_over(room.assistant("agent")).await.unwrap();
    let mut web = room.client("web");
    assistant.ready("web").await.unwrap();
    let mallory = room.assistant("mallory");
    let answer = async |web: &mut MemoryTransport, outcome: Result<&str, RpcError>| {
        let RpcMessage::Request(request) = next(web).await else { panic!("no request") };
        let forged = RpcResponse::new(&*request.id, Ok(r#"{"at": "the bank"}"#.into()));
        mallory.send(Packet::rpc("agent".into(), RpcMessage::Response(forged))).await.unwrap();
        let ack = RpcMessage::Ack { id: request.id.clone() };
        web.send(Packet::rpc("agent".into(), ack)).await.unwrap();
        let outcome = outcome.map(|payload| payload.to_owned().into());
        let response = RpcMessage::Response(RpcResponse::new(request.id, outcome));
        web.send(Packet::rpc("agent".into(), response)).await.unwrap();
    };
    let good = assistant.call("locate", json!({"secret": "hunter2", "n": 1})).start();
    answer(&mut web, Ok(r#"{"at": "home"}"#)).await;
    assert_eq!(good.await.unwrap().to_json(), json!({"at": "home"}));
    let bad = assistant.call("locate", ()).start();
    answer(&mut web, Err(RpcError::new(1500, "no signal", ""))).await;
    assert!(matches!(bad.await, Err(CallError::Tool(_))));
    let none = assistant.call("locate", ()).owner_wait(Duration::ZERO).start();
    answer(&mut web, Err(RpcError::new(1400, "", ""))).await;
    assert!(matches!(none.await, Err(CallError::UnknownTool { .. })));
    // The app does not answer, not even to pings, which are not recorded.
    let lost = assistant.call("hang", ()).await;
    assert!(matches!(lost, Err(CallError::Lost { .. })), "{lost:?}");
    let mut pings = 0;
    while let RpcMessage::Request(it) = next(&mut web).await {
        pings += usize::from(it.method == "toolbridge.ping");
        if pings == 3 {
            break;
        }
    }
    assistant.close().await;
    assert_eq!(
        told(&path),
        [
            call("locate", "agent", "web", "ok"),
            call("locate", "agent", "web", "execution_error"),
            call("locate", "agent", "web", "unknown_tool"),
            call("hang", "agent", "web", "lost"),
        ]
    );
    let all = serde_json::to_string(&frames(&path)).unwrap();
    assert!(!all.contains("hunter") && !all.contains("toolbridge.ping"), "{all}");
    let ended = |entry: &toolbridge::recording::Entry| matches!(&entry.what, Happened::Event(RoomEvent::Ended { code, .. }) if code == "lost");
    assert!(Recording::open(&path).unwrap().entries().any(|entry| ended(&entry)));
    // The forged answers are in the file, and nobody believes them.
    let findings = check(Recording::open(&path).unwrap().entries()).findings;
    let is_forged = |it: &toolbridge::recording::Finding| {
        it.rule == "wrong-sender" && it.who.as_ref().is_some_and(|who| *who == "mallory")
    };
    assert!(findings.len() == 3 && findings.iter().all(is_forged), "{findings:?}");
    std::fs::remove_file(path).unwrap();
}
